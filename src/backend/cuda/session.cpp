#include "backend/cuda/session.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/adamw.h"
#include "base/check.h"

namespace coda {

std::unique_ptr<Backend> make_cuda_backend() { return std::make_unique<cuda::CudaBackend>(); }

}  // namespace coda

namespace coda::cuda {

namespace {

DevicePointer device_pointer(const void* at) { return reinterpret_cast<DevicePointer>(at); }

bool same(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols &&
         a.stride == b.stride;
}

/// What of a program decides its kernels: everything but names.
std::string structure_of(const Program& p) {
  std::string text;
  const auto put = [&](auto... numbers) {
    ((text += fmt::format("{} ", numbers)), ...);
    text += '\n';
  };
  const auto dim = [&](const Dim& d) { put(static_cast<int>(d.symbol), d.num, d.den); };
  put(static_cast<int>(p.form), p.gemm.transpose_a, p.gemm.transpose_b, p.gemm.a);
  for (const std::int32_t b : p.gemm.b) put(b);
  for (const Dim& d : {p.gemm.k, p.rows, p.cols}) dim(d);
  for (const Operand& o : p.operands) {
    put(static_cast<int>(o.kind), static_cast<int>(o.dtype), o.output, o.partial, o.accumulate);
    dim(o.rows);
    dim(o.cols);
  }
  for (const Value& v : p.values) {
    const Attrs& a = v.attrs;
    put(static_cast<int>(v.op), static_cast<int>(v.kind), v.operand, v.partial, v.args.size());
    for (const std::int32_t arg : v.args) put(arg);
    dim(v.cols);
    put(a.value, a.lo, a.hi, a.period, static_cast<int>(a.layout), static_cast<int>(a.dtype),
        a.transpose_a, a.transpose_b, static_cast<int>(a.finish), a.ignore_index, a.index, a.index2,
        static_cast<int>(a.opaque));
  }
  return text;
}

std::size_t slot_of(Phase phase) { return phase == Phase::forward ? 0 : 1; }

}  // namespace

// ---- Backend

CudaBackend::CudaBackend() : gemm_(stream_), error_flag_(sizeof(unsigned)) {
  error_flag_.fill(0, stream_);
}

std::unique_ptr<Session> CudaBackend::prepare(std::shared_ptr<const Plan> plan,
                                              std::int64_t max_tokens) {
  Device::get().use();
  return std::make_unique<CudaSession>(*this, std::move(plan), max_tokens);
}

std::shared_ptr<void> CudaBackend::allocate(std::size_t bytes) {
  Device::get().use();
  auto memory = std::make_shared<DeviceBuffer>(bytes);
  memory->fill(0, stream_);
  void* data = reinterpret_cast<void*>(memory->pointer());
  return {std::move(memory), data};
}

void CudaBackend::upload(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  Device::get().use();
  // From pageable memory the driver has taken a copy when the call returns.
  check(driver().memcpy_htod_async(device_pointer(to), from, bytes, stream_.handle()),
        "cuMemcpyHtoDAsync");
}

void CudaBackend::copy_to_host(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) {
    check(driver().memcpy_dtoh_async(to, device_pointer(from), bytes, stream_.handle()),
          "cuMemcpyDtoHAsync");
  }
  stream_.synchronize();
}

void CudaBackend::download(void* to, const void* from, std::size_t bytes) {
  Device::get().use();
  copy_to_host(to, from, bytes);
  synchronize();
}

void CudaBackend::fill_zero(void* at, std::size_t bytes) {
  if (bytes == 0) return;
  Device::get().use();
  check(driver().memset_d8_async(device_pointer(at), 0, bytes, stream_.handle()),
        "cuMemsetD8Async");
}

std::unique_ptr<DeviceAdamW> CudaBackend::make_adamw(std::span<const AdamWTensor> tensors) {
  Device::get().use();
  return make_adamw_on(stream_, tensors);
}

void CudaBackend::synchronize() {
  Device::get().use();
  unsigned flag = 0;
  error_flag_.download(&flag, sizeof(flag), stream_);
  if (flag != 0) error_flag_.fill(0, stream_);
  for (CudaSession* session : sessions_) session->settle(flag != 0);
  if (flag == 0) return;
  throw_error<UsageError>(
      "run: expected targets, token ids and positions within their ranges, got others in memory "
      "that "
      "has changed since. Their rows of the results are NaN.");
}

// ---- Session

CudaSession::CudaSession(CudaBackend& backend, std::shared_ptr<const Plan> plan,
                         std::int64_t max_tokens)
    : backend_(backend), plan_(plan), bindings_(plan, max_tokens, {.backend = &backend}) {
  const auto most_rows = [&](const Step& step) {
    return rows_of({0, step.piece.count}, max_tokens).rows;
  };
  std::size_t workspace = 0;
  for (const auto* steps : {&plan_->forward, &plan_->backward}) {
    for (const Step& step : *steps) {
      workspace = std::max(workspace, workspace_bytes_of(step, *plan_, most_rows(step)));
    }
  }
  workspace_ = DeviceBuffer(workspace);
  workspace_.fill(0, backend_.stream_);  // as all memory of a backend
  StepContext context;
  context.gemm = &backend_.gemm_;
  context.max_tokens = max_tokens;
  context.workspace = workspace_.pointer();
  context.error_flag = backend_.error_flag_.pointer();
  steps_[0] = make_steps(plan_->forward, context);
  steps_[1] = make_steps(plan_->backward, context);
  std::vector<KernelSource> sources;
  for (const auto& steps : steps_) {
    for (const BoundStep& step : steps) {
      for (KernelSource& source : step.kernel->sources()) sources.push_back(std::move(source));
    }
  }
  KernelStore::get().prepare(sources);
  backend_.sessions_.push_back(this);
}

CudaSession::~CudaSession() { std::erase(backend_.sessions_, this); }

std::vector<CudaSession::BoundStep> CudaSession::make_steps(const std::vector<Step>& steps,
                                                            const StepContext& context) {
  std::vector<BoundStep> made;
  for (const Step& step : steps) {
    BoundStep bound;
    // Equal programs of different layers take the names of the first, so that they are one kernel.
    Step named = step;
    if (step.program) {
      named.program =
          programs_.try_emplace(structure_of(*step.program), step.program).first->second;
    }
    StepContext of_step = context;
    of_step.max_tokens = rows_of({0, step.piece.count}, context.max_tokens).rows;
    bound.kernel = make_step_kernel(named, *plan_, of_step);
    bound.step = &step;
    bound.views.resize(step.slices.size());
    made.push_back(std::move(bound));
  }
  return made;
}

void CudaSession::bind(std::string_view name, const TensorView& view) {
  Device::get().use();
  unsigned type = 0;
  if (view.rows > 0 && view.cols > 0 && view.data != nullptr &&
      driver().pointer_get_attribute(&type, kPointerMemoryType, device_pointer(view.data)) != 0) {
    throw_error<UsageError>(
        "bind: {}: expected memory of the GPU, got memory that it does not know. Allocate it with "
        "the backend (BackendTensor), and copy with upload and download.",
        name);
  }
  bindings_.bind(name, view);
}

bool CudaSession::bind_steps(Phase phase, std::int64_t tokens) {
  bindings_.begin(phase, tokens);
  bool changed = false;
  for (BoundStep& step : steps_[slot_of(phase)]) {
    const std::int64_t rows = rows_of(step.step->piece, tokens).rows;
    bool moved = step.tokens != rows;
    for (std::size_t i = 0; i < step.views.size(); ++i) {
      const TensorView view = bindings_.view(step.step->slices[i], step.step->piece);
      moved = moved || !same(view, step.views[i]);
      step.views[i] = view;
    }
    if (!moved) continue;
    step.tokens = -1;
    step.kernel->bind(step.views, rows);
    step.tokens = rows;
    changed = true;
  }
  return changed;
}

void CudaSession::run(Phase phase, std::int64_t tokens) {
  Device::get().use();
  const std::size_t slot = slot_of(phase);
  std::vector<BoundStep>& steps = steps_[slot];
  std::unique_ptr<Graph>& graph = graphs_[slot];
  const bool changed = bind_steps(phase, tokens);
  const auto enqueue = [&] {
    for (BoundStep& step : steps) step.kernel->launch(backend_.stream_);
  };
  if (changed) {
    graph.reset();
    enqueue();
  } else {
    // The second run of the same kind pays for the graph, later ones only launch it.
    if (!graph && !steps.empty()) {
      graph = std::make_unique<Graph>(Graph::capture(backend_.stream_, enqueue));
    }
    if (graph) graph->launch(backend_.stream_);
  }
  ran_[slot] = true;
  bindings_.end(phase);
}

std::vector<double> CudaSession::timed_run(Phase phase, std::int64_t tokens) {
  Device::get().use();
  const std::size_t slot = slot_of(phase);
  bind_steps(phase, tokens);
  std::vector<Event> events(steps_[slot].size() + 1);
  events[0].record(backend_.stream_);
  for (std::size_t i = 0; i < steps_[slot].size(); ++i) {
    steps_[slot][i].kernel->launch(backend_.stream_);
    events[i + 1].record(backend_.stream_);
  }
  ran_[slot] = true;
  bindings_.end(phase);
  backend_.synchronize();
  std::vector<double> times;
  for (std::size_t i = 1; i < events.size(); ++i) {
    times.push_back(events[i].milliseconds_since(events[i - 1]));
  }
  return times;
}

void CudaSession::settle(bool bad) {
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    const bool ran = std::exchange(ran_[slot_of(phase)], false);
    if (!ran || !bad) continue;
    bindings_.check_ranges(phase, [this](void* to, const void* from, std::size_t bytes) {
      backend_.copy_to_host(to, from, bytes);
    });
  }
}

}  // namespace coda::cuda
