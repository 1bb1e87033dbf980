// A fixed set of threads that share out numbered pieces of work. Which thread does a piece is left
// open, so a piece must not depend on it: then results are the same for any number of threads.
// Running work allocates nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace coda::cpu {

class ThreadPool {
 public:
  /// threads 0: one for each core that this process may use. The caller of parallel_for is one of
  /// them. Throws BackendError if the system gives no more threads.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls body(index, thread) for every index in [0, count), thread in [0, threads()), and returns
  /// when all are done. The first exception is thrown again here. Not to be called from a body, nor
  /// by two callers at once.
  template <class Body>
  void parallel_for(std::int64_t count, Body&& body) {
    run(count, const_cast<void*>(static_cast<const void*>(&body)),
        [](void* context, std::int64_t index, int thread) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(index, thread);
        });
  }

 private:
  using Call = void (*)(void* context, std::int64_t index, int thread);
  void run(std::int64_t count, void* context, Call call);
  void work(int thread);
  void loop(int thread);
  void stop();

  int threads_ = 1;
  std::vector<std::thread> workers_;
  std::atomic<std::uint32_t> round_{0};  ///< counts calls; workers sleep until it moves
  std::atomic<std::int32_t> busy_{0};    ///< workers that have not finished this round
  std::atomic<std::int64_t> next_{0};    ///< next index to take
  std::atomic<bool> stop_{false};
  std::int64_t count_ = 0;
  void* context_ = nullptr;
  Call call_ = nullptr;
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace coda::cpu
