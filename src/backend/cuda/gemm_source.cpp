#include "backend/cuda/gemm_source.h"

#include "backend/cuda/device_sources.h"
#include "backend/cuda/op_text.h"
#include "base/check.h"

namespace coda::cuda {

namespace {

const char* text_of(Major major) { return major == Major::k ? "k" : "mn"; }

/// PTX ISA, wgmma.mma_async: one warpgroup, m64 n k16, fp32 accumulators in n / 2 registers.
std::string wgmma_function(int n, DType operand, Major a, Major b) {
  const int registers = n / 2;
  std::string placeholders, operands;
  for (int i = 0; i < registers; ++i) {
    const char* separator = i == 0 ? "" : ", ";
    placeholders += fmt::format("{}%{}", separator, i);
    operands += fmt::format("{}\"+f\"(d[{}])", separator, i);
  }
  // The high word of a descriptor: 1024 bytes from one group of eight 128-byte rows to the next,
  // 128-byte swizzle.
  constexpr unsigned kHighWord = (1024 >> 4) | 1u << 30;
  return fmt::format(
      "/// d = a b (+ d if add): d[4 j + 2 h + e] is row lane / 4 + 8 h of the warp's 16, column\n"
      "/// 8 j + 2 (lane % 4) + e. a, b: low words of descriptors of shared memory.\n"
      "__device__ __forceinline__ void wgmma_multiply(float (&d)[{0}], unsigned a, unsigned b,\n"
      "                                               int add) {{\n"
      "  asm volatile(\"{{ .reg .pred p; .reg .b32 high; .reg .b64 x, y;\\n\"\n"
      "    \"setp.ne.b32 p, %{1}, 0; mov.b32 high, {2}; mov.b64 x, {{%{3}, high}};\\n\"\n"
      "    \"mov.b64 y, {{%{4}, high}};\\n\"\n"
      "    \"wgmma.mma_async.sync.aligned.m64n{5}k16.f32.{6}.{6} {{{7}}}, x, y, p, 1, 1, {8}, {9}; "
      "}}\"\n"
      "    : {10} : \"r\"(a), \"r\"(b), \"r\"(add));\n}}\n",
      registers, registers + 2, kHighWord, registers, registers + 1, n, name_of(operand),
      placeholders, a == Major::mn ? 1 : 0, b == Major::mn ? 1 : 0, operands);
}

std::string prelude(const GemmConfig& config, const GemmVariant& variant, bool wgmma = true) {
  const bool wide = variant.output == DType::f32;
  const bool direct = variant.store == StorePath::direct;
  std::string text =
      fmt::format("// {} {}{} {} -> {}\n", config.name, text_of(variant.a), text_of(variant.b),
                  name_of(variant.operand), name_of(variant.output));
  text +=
      "namespace coda_device {\nenum class Major { k, mn };\nenum class Type { bf16, f16, f32 };\n";
  const auto number = [&](const char* name, int value) {
    text += fmt::format("constexpr int {} = {};\n", name, value);
  };
  const auto flag = [&](const char* name, bool value) {
    text += fmt::format("constexpr bool {} = {};\n", name, value);
  };
  number("kTileN", config.tile_n);
  number("kWgBlocks", config.wg_blocks);
  number("kStages", config.stages);
  number("kClusterM", config.cluster_m);
  number("kClusterN", config.cluster_n);
  number("kBlocksM", variant.blocks_m);
  number("kBlocksN", variant.blocks_n);
  number("kBlocksK", variant.blocks_k);
  number("kPartsN", variant.parts_n);
  flag("kPaired", variant.paired);
  flag("kVectorsFirst", variant.vectors_first);
  number("kSharedLimit", 232448);  // of sm_90, a CTA
  flag("kTeamsDown", config.teams_down());
  flag("kPingPong", config.ping_pong);
  flag("kSplitTail", config.split_tail);
  flag("kAccumulate", variant.accumulate);
  flag("kDeferred", config.defer && !wide && !direct);
  flag("kDirect", direct);
  text += fmt::format("constexpr Major kMajorA = Major::{};\n", text_of(variant.a));
  text += fmt::format("constexpr Major kMajorB = Major::{};\n", text_of(variant.b));
  text += fmt::format("constexpr Type kOutput = Type::{};\n", name_of(variant.output));
  if (wgmma) text += wgmma_function(config.tile_n, variant.operand, variant.a, variant.b);
  return text + "}  // namespace coda_device\n";
}

}  // namespace

KernelSource gemm_source(const GemmConfig& config, const GemmVariant& variant) {
  internal_check(variant.operand == DType::bf16 || variant.operand == DType::f16,
                 "gemm_source: operands of {}", name_of(variant.operand));
  internal_check(!variant.accumulate || variant.output == DType::f32,
                 "gemm_source: accumulating into {}", name_of(variant.output));
  KernelSource source;
  source.name = fmt::format("gemm_{}_{}{}_{}_{}{}{}", config.name, text_of(variant.a),
                            text_of(variant.b), name_of(variant.operand), name_of(variant.output),
                            variant.accumulate ? "_add" : "",
                            variant.store == StorePath::direct ? "_direct" : "");
  source.entry = "coda_gemm";
  source.shared_bytes = config.shared_bytes();
  source.text = prelude(config, variant);
  source.text += device_text({"params.cuh", "ptx.cuh", "tile_config.cuh", "ring.cuh",
                              "schedule.cuh", "epilogue_store.cuh", "gemm_sm90.cuh"});
  return source;
}

KernelSource program_source(const std::string& name, const GemmConfig& config,
                            const GemmVariant& variant, const std::string& epilogue) {
  KernelSource source;
  source.name = fmt::format("{}_{}", name, config.name);
  source.entry = "coda_gemm";
  source.shared_bytes = config.shared_bytes();
  source.text = prelude(config, variant);
  source.text +=
      device_text({"params.cuh", "ptx.cuh", "elements.cuh", "op_math.cuh", "tile_config.cuh",
                   "ring.cuh", "schedule.cuh", "epilogue_fragment.cuh", "epilogue_reduce.cuh"});
  source.text += "#line 1 \"epilogue\"\n" + epilogue;
  source.text += device_text({"gemm_sm90.cuh"});
  return source;
}

KernelSource plain_program_source(const std::string& name, const GemmConfig& config,
                                  const GemmVariant& variant, DType b, const std::string& epilogue,
                                  bool one_row) {
  KernelSource source;
  source.name = fmt::format("{}_{}", name, one_row ? "one_row" : "plain");
  source.entry = one_row ? "coda_one_row" : "coda_plain_fragments";
  source.shared_bytes = config.shared_bytes();
  source.text = prelude(config, variant, false);
  source.text +=
      device_text({"params.cuh", "ptx.cuh", "elements.cuh", "op_math.cuh", "tile_config.cuh",
                   "ring.cuh", "schedule.cuh", "epilogue_fragment.cuh", "epilogue_reduce.cuh"});
  source.text += fmt::format(
      "namespace coda_device {{\nusing InputA = {};\nusing InputB = {};\nconstexpr int kPlainLists "
      "= {};\n"
      "constexpr int kMatricesB = kBlocksN * kPartsN * kPlainLists;\n}}\n",
      element_text(variant.operand), element_text(b), variant.blocks_k);
  source.text += "#line 1 \"epilogue\"\n" + epilogue;
  source.text +=
      device_text({"plain_operands.cuh", one_row ? "epilogue_one_row.cuh" : "epilogue_plain.cuh"});
  return source;
}

KernelSource plain_gemm_source(DType operand, DType output, bool accumulate, DType sum) {
  KernelSource source;
  source.name = fmt::format("plain_gemm_{}_{}{}", name_of(operand), name_of(output),
                            accumulate ? "_add" : "");
  source.entry = "coda_plain_gemm";
  source.text += device_text({"params.cuh", "ptx.cuh", "elements.cuh"});
  source.text += fmt::format(
      "namespace coda_device {{\nusing Input = {};\nusing Output = {};\nusing Sum = {};\n"
      "constexpr bool kAccumulate = {};\n}}\n",
      element_text(operand), element_text(output), sum == DType::f64 ? "double" : "float",
      accumulate);
  source.text += device_text({"plain_gemm.cuh"});
  return source;
}

KernelSource probe_source() {
  KernelSource source{"gpc_probe", "coda_gpc_probe", "", 0};
  source.text += device_text({"params.cuh", "ptx.cuh", "gpc_probe.cuh"});
  source.shared_bytes = 200 * 1024;  // so that an SM holds one CTA
  return source;
}

KernelSource check_source(const std::string& entry) {
  KernelSource source{"check", entry, "", 0};
  source.text += device_text({"params.cuh", "ptx.cuh", "elements.cuh", "check.cuh"});
  return source;
}

}  // namespace coda::cuda
