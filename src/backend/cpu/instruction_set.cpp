#include "backend/cpu/instruction_set.h"

#include <cstdlib>

#include "backend/backend.h"
#include "backend/cpu/simd_targets.h"
#include "base/check.h"
#include "hwy/targets.h"
#include "oneapi/dnnl/dnnl.h"

namespace coda::cpu {
namespace {

/// A value of CODA_CPU: at most these instructions.
struct Cap {
  std::string_view name;
  std::int64_t forbidden;  ///< Highway's targets; a lower bit is a better one; 0: no cap
  dnnl_cpu_isa_t onednn;   ///< not read without a cap, for which 2.x and 3.x have different names
};
#if HWY_ARCH_X86
constexpr Cap kCaps[] = {
    {"auto", 0, {}},
    {"avx512", HWY_AVX3 - 1, dnnl_cpu_isa_avx512_core},
    {"avx2", HWY_AVX2 - 1, dnnl_cpu_isa_avx2},
    {"baseline", (HWY_SSSE3 << 1) - 1, dnnl_cpu_isa_sse41},
};
#else
constexpr Cap kCaps[] = {{"auto", 0, {}}};
#endif

const Cap& cap_called(std::string_view name) {
  std::string names;
  for (const Cap& cap : kCaps) {
    if (cap.name == name) return cap;
    names += names.empty() ? "" : ", ";
    names += cap.name;
  }
  throw_error<UsageError>(
      "CODA_CPU: expected one of {}, got \"{}\". Unset it to use all that the processor has.",
      names, name);
}

const Cap& cap_of_environment() {
  const char* value = std::getenv("CODA_CPU");
  return cap_called(value ? value : "auto");
}

}  // namespace

std::int64_t forbidden_targets(std::string_view name) { return cap_called(name).forbidden; }

void cap_instruction_sets() {
  static const bool done = [] {
    const Cap& cap = cap_of_environment();
    if (cap.forbidden == 0) return true;
    hwy::DisableTargets(cap.forbidden);
    if (dnnl_set_max_cpu_isa(cap.onednn) != dnnl_success)
      throw_error<BackendError>("CODA_CPU={}: oneDNN takes no cap here. Unset CODA_CPU.", cap.name);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace coda::cpu

namespace coda {

std::string cpu_instruction_set() {
  cpu::cap_instruction_sets();
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  const std::string_view best = hwy::TargetName(usable & -usable);
  const std::string_view name = best == "AVX3"     ? "AVX-512"
                                : best == "SCALAR" ? "the compiler's baseline"
                                                   : best;
  const cpu::Cap& cap = cpu::cap_of_environment();
  return cap.forbidden == 0 ? std::string(name) : fmt::format("{} (CODA_CPU={})", name, cap.name);
}

}  // namespace coda
