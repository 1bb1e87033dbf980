#include "backend/cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace coda::cpu {
namespace {

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads > 0 ? threads : usable_cores()) {
  workers_.reserve(static_cast<std::size_t>(threads_ - 1));
  try {
    for (int t = 1; t < threads_; ++t) workers_.emplace_back([this, t] { loop(t); });
  } catch (const std::system_error& e) {
    const std::size_t started = workers_.size() + 1;
    stop();
    throw_error<BackendError>(
        "cpu: cannot start more than {} of {} threads: {}. Ask for fewer (--threads).", started,
        threads_, e.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_ = true;
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(std::int64_t count, void* context, Call call) {
  if (count <= 0) return;
  if (threads_ == 1 || count == 1) {
    for (std::int64_t index = 0; index < count; ++index) call(context, index, 0);
    return;
  }
  count_ = count;
  context_ = context;
  call_ = call;
  next_ = 0;
  busy_ = threads_ - 1;
  round_.fetch_add(1);
  round_.notify_all();
  work(0);
  for (std::int32_t busy = busy_; busy != 0; busy = busy_) busy_.wait(busy);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::work(int thread) {
  try {
    for (std::int64_t index = next_++; index < count_; index = next_++)
      call_(context_, index, thread);
  } catch (...) {
    next_ = count_;
    const std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void ThreadPool::loop(int thread) {
  std::uint32_t seen = 0;
  while (true) {
    round_.wait(seen);
    seen = round_;
    if (stop_) return;
    work(thread);
    if (--busy_ == 0) busy_.notify_one();
  }
}

}  // namespace coda::cpu
