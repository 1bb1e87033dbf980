// A run with the built-in GEMM allocates nothing (oneDNN's primitives do, a little, at every call):
// every malloc between two marks is counted, on every thread.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "backend/backend.h"
#include "plan/blocks.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
#define CODA_COUNTS_ALLOCATIONS 1

namespace {
std::atomic<long> allocations{0};
}

// glibc's own names for what these replace in the test program.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  ++allocations;
  return __libc_realloc(memory, size);
}
void* memalign(std::size_t alignment, std::size_t size) {
  ++allocations;
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  *out = memalign(alignment, size);
  return *out ? 0 : 12;
}
}
#endif

namespace coda {
namespace {

#ifdef CODA_COUNTS_ALLOCATIONS

/// Binds fresh memory for `tokens` rows to every input and output.
std::vector<HostTensor> bind_all(const Plan& plan, Session& session, std::int64_t tokens) {
  std::vector<HostTensor> tensors;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.role != Role::input && buffer.role != Role::output) continue;
    const std::int64_t rows = buffer.rows == kTokens ? tokens : buffer.rows;
    HostTensor tensor(buffer.dtype, rows, buffer.cols);
    if (is_float(buffer.dtype))
      for (std::int64_t i = 0; i < tensor.size(); ++i)
        tensor.set(i, static_cast<double>(i % 13 - 6) / 8);
    session.bind(buffer.name, tensor.view());
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void expect_no_allocation(const CompileRequest& request, Graph& graph, DType dtype) {
  CompileOptions options;
  options.dtype = options.output_dtype = dtype;
  const auto plan = compile(graph, request, options);
  const auto backend = make_cpu_backend(3, CpuGemm::builtin);
  const auto session = backend->prepare(plan, 300);
  for (const std::int64_t tokens : {0, 1, 129, 300}) {
    const auto tensors = bind_all(*plan, *session, tokens);
    for (const Phase phase : {Phase::forward, Phase::backward}) {
      const long before = allocations;
      session->run(phase, tokens);
      EXPECT_EQ(allocations - before, 0) << tokens << " tokens";
    }
  }
}

TEST(CpuAllocation, TheCounterCounts) {
  const long before = allocations;
  std::free(std::malloc(100));
  const HostTensor tensor(DType::f32, 3, 5);
  EXPECT_GE(allocations - before, 2);
}

TEST(CpuAllocation, RunsOfALayerAndAHeadAllocateNothing) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    blocks::Sizes sizes;
    sizes.tile = dtype;
    Graph layer, head, parallel;
    expect_no_allocation(blocks::llama_layer(layer, sizes), layer, dtype);
    expect_no_allocation(blocks::head(head, sizes), head, dtype);
    expect_no_allocation(blocks::parallel_block(parallel, sizes), parallel, dtype);
  }
}

#else
TEST(CpuAllocation, NotCountedHere) {
  GTEST_SKIP() << "malloc can be replaced with glibc and without AddressSanitizer only";
}
#endif

}  // namespace
}  // namespace coda
