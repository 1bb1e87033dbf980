#include "backend/cuda/info.h"

#include <nlohmann/json.hpp>
#include <thread>

#include "backend/backend.h"
#include "cli/command.h"
#include "coda/version.h"

namespace coda {
namespace {

std::string cpu_features() {
  std::string text;
  const auto add = [&](bool has, const char* name) {
    if (has) text += (text.empty() ? "" : " ") + std::string(name);
  };
#if defined(__x86_64__)
  __builtin_cpu_init();
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
#elif defined(__aarch64__)
  add(true, "neon");
#endif
  return text.empty() ? "none of those that coda uses" : text;
}

int run(const Printer& output) {
  const unsigned threads = std::thread::hardware_concurrency();
  const std::string gpu = cuda::info();  // lines; the first is "cuda: ..."
  constexpr std::size_t kLabel = std::string_view("cuda: ").size();
  const CpuGemmInfo gemm = cpu_gemm_info();
  output.object({{"version", version()},
                 {"cpu", cpu_features()},
                 {"threads", threads},
                 {"gemm", {{"f32", gemm.f32}, {"bf16", gemm.bf16}, {"f16", gemm.f16}}},
                 {"onednn", gemm.onednn},
                 {"cuda", gpu.substr(kLabel, gpu.find('\n') - kLabel)}});
  output.result("coda: {}\ncpu: {}\nthreads: {}\n", version(), cpu_features(), threads);
  output.result("cpu gemm: f32 {}, bf16 {}, f16 {}\noneDNN: {}\n{}", gemm.f32, gemm.bf16, gemm.f16,
                gemm.onednn, gpu);
  return 0;
}

}  // namespace

Command add_info(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("info", "What this build runs on");
  auto output = std::make_shared<Printer>();
  output->add_option(*sub);
  sub->footer("Example:\n  coda info --json");
  return {sub, [output] { return run(*output); }};
}

}  // namespace coda
