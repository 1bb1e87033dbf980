#include "backend/cuda/info.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
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

/// Lines such as "cuda compiler: NVRTC 13.0" as members of an object: "cuda_compiler", ...
void add_lines(nlohmann::ordered_json& object, const std::string& lines) {
  std::istringstream text(lines);
  for (std::string line; std::getline(text, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string label = line.substr(0, colon);
    std::replace(label.begin(), label.end(), ' ', '_');
    object[label] = line.substr(colon + 2);
  }
}

int run(const Printer& output) {
  const unsigned threads = std::thread::hardware_concurrency();
  const std::string gpu = cuda::info();
  const std::string kernels = cpu_instruction_set();
  const CpuGemmInfo gemm = cpu_gemm_info();
  nlohmann::ordered_json all = {
      {"version", version()},
      {"cpu", cpu_features()},
      {"kernels", kernels},
      {"threads", threads},
      {"gemm", {{"f32", gemm.f32}, {"bf16", gemm.bf16}, {"f16", gemm.f16}}},
      {"onednn", gemm.onednn}};
  add_lines(all, gpu);
  output.object(all);
  output.result("coda: {}\ncpu: {}\ncpu kernels: {}\nthreads: {}\n", version(), cpu_features(),
                kernels, threads);
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
