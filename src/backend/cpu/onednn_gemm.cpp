#include "backend/cpu/onednn_gemm.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "backend/cpu/instruction_set.h"
#include "backend/cpu/kernels.h"
#include "base/check.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace coda::cpu {
namespace {

constexpr i64 kMaxRows = 256;
/// A tile is cut into these heights, the largest first; the last one takes what is left.
constexpr std::array<i64, 3> kHeights = {256, 128, OneDnnGemm::kRowStep};
/// K blocks: panels of 256 and 512 rows of 16-bit elements stay in the second-level cache.
constexpr i64 kDepth = 512;
constexpr i64 kShortDepth = 64;

i64 divide_up(i64 n, i64 by) { return (n + by - 1) / by; }
i64 round_up(i64 n, i64 by) { return divide_up(n, by) * by; }

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

/// Makes the calling thread's OpenMP teams one thread, for as long as this lives. The run-time
/// library that oneDNN brought along is asked, if there is one.
class SingleThread {
 public:
  SingleThread() : before_(get_ ? get_() : 0) {
    if (set_) set_(1);
  }
  ~SingleThread() {
    if (set_ && before_ > 0) set_(before_);
  }
  SingleThread(const SingleThread&) = delete;
  SingleThread& operator=(const SingleThread&) = delete;

 private:
  using Get = int (*)();
  using Set = void (*)(int);
  inline static const Get get_ = reinterpret_cast<Get>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  inline static const Set set_ = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  int before_;
};

struct Range {
  i64 first = 0, count = 0;
  i64 padded = 0;
};

/// Rows and columns of blocks that lie one above the other, as a dense matrix of the padded extents
/// with zeros past the edges.
void copy_panel(char* y, std::span<const TensorView> blocks, Range rows, Range cols) {
  const auto size = static_cast<i64>(size_of(blocks[0].dtype));
  const auto bytes = static_cast<std::size_t>(cols.count * size);
  const auto rest = static_cast<std::size_t>((cols.padded - cols.count) * size);
  i64 top = 0, done = 0;
  for (const TensorView& block : blocks) {
    for (; done < rows.count && rows.first + done < top + block.rows; ++done) {
      const i64 row = rows.first + done - top;
      const auto* x =
          static_cast<const char*>(block.data) + (row * block.stride + cols.first) * size;
      std::memcpy(y, x, bytes);
      std::memset(y + bytes, 0, rest);
      y += bytes + rest;
    }
    top += block.rows;
  }
  std::memset(y, 0, static_cast<std::size_t>(rows.padded - rows.count) * (bytes + rest));
}

/// The same matrix where it lies, if it lies there densely and in full; else its copy at y.
const char* panel_of(char* y, std::span<const TensorView> blocks, Range rows, Range cols) {
  i64 first = rows.first;
  for (const TensorView& block : blocks) {
    if (first >= block.rows) {
      first -= block.rows;
      continue;
    }
    const bool dense = block.stride == cols.padded && cols.first == 0;
    const bool full = rows.count == rows.padded && cols.count == cols.padded;
    if (!dense || !full || first + rows.count > block.rows) break;
    return static_cast<const char*>(block.data) +
           first * block.stride * static_cast<i64>(size_of(block.dtype));
  }
  copy_panel(y, blocks, rows, cols);
  return y;
}

bool has(dnnl::cpu_isa isa) {
  const auto bits = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

/// Whether the processor multiplies the type itself (oneDNN's other kernels would widen it).
bool native(DType dtype) {
  if (dtype == DType::bf16) return has(dnnl::cpu_isa::avx512_core_bf16);
#if DNNL_VERSION_MAJOR >= 3
  if (dtype == DType::f16) return has(dnnl::cpu_isa::avx512_core_fp16);
#endif
  return dtype == DType::f32;
}

std::string version() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

std::string_view isa_name() {
#if DNNL_VERSION_MAJOR >= 3
  if (has(dnnl::cpu_isa::avx512_core_amx)) return "AVX512-FP16 and AMX";
  if (has(dnnl::cpu_isa::avx512_core_fp16)) return "AVX512-FP16";
#endif
  if (has(dnnl::cpu_isa::avx512_core_amx)) return "AVX512-BF16 and AMX";
  if (has(dnnl::cpu_isa::avx512_core_bf16)) return "AVX512-BF16";
  if (has(dnnl::cpu_isa::avx512_core)) return "AVX-512 without BF16";
  return has(dnnl::cpu_isa::avx2) ? "AVX2" : "less than AVX2";
}

dnnl::memory::data_type type_of(DType dtype) {
  using Type = dnnl::memory::data_type;
  return dtype == DType::f32 ? Type::f32 : dtype == DType::bf16 ? Type::bf16 : Type::f16;
}

/// c [height, width] += a [height, depth] b [depth, width], all dense.
struct Kernel {
  i64 height = 0, depth = 0, width = 0;
  dnnl::memory::desc a, b, c, scratch;
  dnnl::matmul multiply;

  Kernel(const GemmShape& shape, i64 h, i64 d, i64 w) : height(h), depth(d), width(w) {
    using Tag = dnnl::memory::format_tag;
    const auto tag = [](bool transpose) { return transpose ? Tag::ba : Tag::ab; };
    a = {{h, d}, type_of(shape.dtype), tag(shape.transpose_a)};
    b = {{d, w}, type_of(shape.dtype), tag(shape.transpose_b)};
    c = {{h, w}, dnnl::memory::data_type::f32, Tag::ab};
    dnnl::post_ops add;
    add.append_sum(1.0f);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(add);
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc made(engine(), a, b, c, attributes);
#else
    const dnnl::matmul::primitive_desc made(dnnl::matmul::desc(a, b, c), attributes, engine());
#endif
    const std::string_view name = made.impl_info_str();
    if (name.starts_with("ref"))
      throw_error<BackendError>("oneDNN {}: matmul of {}: only {} is there", version(),
                                name_of(shape.dtype), name);
    scratch = made.scratchpad_desc();
    multiply = dnnl::matmul(made);
  }
};

}  // namespace

struct OneDnnGemm::Kernels {
  std::vector<i64> depths;  ///< largest first
  std::vector<Kernel> all;
  i64 a_bytes = 0, b_bytes = 0, scratch_bytes = 0;

  explicit Kernels(const GemmShape& shape) {
    // Equal parts of a K that is known; the tokens of a weight gradient are not.
    depths = {kDepth, kShortDepth};
    if (shape.k >= 0) {
      const i64 parts = std::max<i64>(1, divide_up(shape.k, kDepth));
      depths = {std::max<i64>(32, round_up(divide_up(shape.k, parts), 32))};
    }
    for (const i64 width : shape.widths)
      for (const i64 depth : depths)
        for (const i64 height : kHeights) all.emplace_back(shape, height, depth, width);
    const auto size = static_cast<i64>(size_of(shape.dtype));
    for (const Kernel& kernel : all) {
      a_bytes = std::max(a_bytes, round_up(kMaxRows * kernel.depth * size, 64));
      b_bytes = std::max(b_bytes, round_up(kernel.depth * kernel.width * size, 64));
      scratch_bytes = std::max(scratch_bytes, static_cast<i64>(kernel.scratch.get_size()));
    }
  }

  i64 depth_of(i64 left) const {
    for (const i64 depth : depths)
      if (left >= depth) return depth;
    return depths.back();
  }
  const Kernel& find(i64 height, i64 depth, i64 width) const {
    for (const Kernel& kernel : all)
      if (kernel.height == height && kernel.depth == depth && kernel.width == width) return kernel;
    throw_error<InternalError>("cpu: no oneDNN kernel for {} x {} x {}", height, depth, width);
  }
};

OneDnnGemm::OneDnnGemm(const GemmShape& shape) {
  const SingleThread single;
  try {
    kernels_ = std::make_unique<const Kernels>(shape);
  } catch (const dnnl::error& error) {
    throw_error<BackendError>("oneDNN {}: matmul of {}: {}", version(), name_of(shape.dtype),
                              error.what());
  }
}
OneDnnGemm::~OneDnnGemm() = default;

i64 OneDnnGemm::scratch_floats() const {
  return round_up(kernels_->a_bytes + kernels_->b_bytes + kernels_->scratch_bytes, 64) / 4;
}

void OneDnnGemm::multiply(const Factors& factors, i64 row, i64 rows,
                          std::span<const TileBlock> blocks, float* scratch) const {
  for (const TileBlock& block : blocks)
    std::fill_n(block.c, round_up(rows, kRowStep) * block.stride, 0.0f);
  const SingleThread single;
  char* panel_a = reinterpret_cast<char*>(scratch);
  char* panel_b = panel_a + kernels_->a_bytes;
  char* workspace = panel_b + kernels_->b_bytes;
  const auto size = static_cast<i64>(size_of(factors.a.dtype));
  /// Calls f(first row, height) for each part of the tile.
  const auto for_heights = [&](auto&& f) {
    i64 r = 0;
    for (const i64 height : kHeights)
      for (; r < rows && (rows - r >= height || height == kRowStep); r += height) f(r, height);
  };
  try {
    dnnl::stream stream(engine());
    for (i64 k = 0; k < factors.k;) {
      const i64 depth = kernels_->depth_of(factors.k - k);
      const Range along_k{k, std::min(depth, factors.k - k), depth};
      const char* parts_of_a[kMaxRows / OneDnnGemm::kRowStep] = {};
      for_heights([&](i64 r, i64 height) {
        const Range part{row + r, std::min(height, rows - r), height};
        char* y = panel_a + r * depth * size;
        parts_of_a[r / kRowStep] = factors.transpose_a
                                       ? panel_of(y, {&factors.a, 1}, along_k, part)
                                       : panel_of(y, {&factors.a, 1}, part, along_k);
      });
      for (const TileBlock& block : blocks) {
        const Range part{block.col, block.n, block.stride};
        const char* b = factors.transpose_b ? panel_of(panel_b, factors.b, part, along_k)
                                            : panel_of(panel_b, factors.b, along_k, part);
        for_heights([&](i64 r, i64 height) {
          const Kernel& kernel = kernels_->find(height, depth, block.stride);
          const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
            return dnnl::memory(desc, engine(), const_cast<void*>(data));
          };
          kernel.multiply.execute(
              stream, {{DNNL_ARG_SRC, memory(kernel.a, parts_of_a[r / kRowStep])},
                       {DNNL_ARG_WEIGHTS, memory(kernel.b, b)},
                       {DNNL_ARG_DST, memory(kernel.c, block.c + r * block.stride)},
                       {DNNL_ARG_SCRATCHPAD, memory(kernel.scratch, workspace)}});
        });
      }
      k += along_k.count;
    }
    stream.wait();
  } catch (const dnnl::error& error) {
    throw_error<BackendError>("oneDNN {}: matmul of {}: {}", version(), name_of(factors.a.dtype),
                              error.what());
  }
}

CpuGemm resolved(CpuGemm choice) {
  if (choice != CpuGemm::from_environment) return choice;
  const char* value = std::getenv("CODA_CPU_GEMM");
  const std::string_view name = value ? value : "auto";
  if (name == "auto") return CpuGemm::automatic;
  if (name == "builtin") return CpuGemm::builtin;
  if (name == "onednn") return CpuGemm::onednn;
  throw_error<UsageError>(
      "CODA_CPU_GEMM: expected auto, builtin or onednn, got \"{}\". Unset it to choose by operand "
      "type and processor.",
      name);
}

std::unique_ptr<const OneDnnGemm> make_onednn_gemm(CpuGemm choice, const GemmShape& shape) {
  if (choice == CpuGemm::builtin) return nullptr;
  if (choice == CpuGemm::onednn) {
    if (native(shape.dtype)) return std::make_unique<const OneDnnGemm>(shape);
    throw_error<UsageError>(
        "program {}: CODA_CPU_GEMM=onednn: expected a processor with {} for operands of {}, got {} "
        "(oneDNN {}). Set CODA_CPU_GEMM=auto, which uses the built-in kernel.",
        shape.program,
        shape.dtype == DType::bf16 ? "AVX512-BF16 or AMX" : "AVX512-FP16 and oneDNN 3",
        name_of(shape.dtype), isa_name(), version());
  }
  if (shape.dtype == DType::f32 || !native(shape.dtype)) return nullptr;
  try {
    return std::make_unique<const OneDnnGemm>(shape);
  } catch (const BackendError&) {
    return nullptr;  // no fast kernel after all
  }
}

}  // namespace coda::cpu

namespace coda {

CpuGemmInfo cpu_gemm_info(CpuGemm choice) {
  cpu::cap_instruction_sets();
  choice = cpu::resolved(choice);
  const auto which = [&](DType dtype) {
    const bool wanted =
        choice == CpuGemm::onednn || (choice == CpuGemm::automatic && dtype != DType::f32);
    if (wanted && cpu::native(dtype)) return "oneDNN";
    return choice == CpuGemm::onednn ? "none (CODA_CPU_GEMM=onednn)" : "built-in";
  };
  return {fmt::format("{} ({})", cpu::version(), cpu::isa_name()), which(DType::f32),
          which(DType::bf16), which(DType::f16)};
}

}  // namespace coda
