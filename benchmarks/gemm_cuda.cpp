// Races coda's GEMMs against cuBLAS, as `coda bench gemm` does, with few libraries beside it.
//   gemm_cuda [--layer D]... [--sweep] [--shape "NT 16384 2048 2048"]... [--configs a,b]
//   [--no-sustained]
//             [--no-interleaved] [--no-check] [--seconds 0.3] [--rounds 2] [--interleaved-ms 150]
//             [--json FILE]
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "backend/cuda/bench_gemm.h"
#include "coda/error.h"

int main(int argc, char** argv) {
  using namespace coda::cuda;
  BenchGemmOptions options;
  std::string json;
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string flag = argv[i];
      const auto value = [&]() -> std::string {
        if (i + 1 >= argc) throw coda::UsageError("gemm_cuda: expected a value after " + flag);
        return argv[++i];
      };
      if (flag == "--layer") {
        for (const auto& shape : layer_gemms(16384, std::stoll(value()))) {
          options.shapes.push_back(shape);
        }
      } else if (flag == "--sweep") {
        for (const auto& shape : sweep_gemms()) options.shapes.push_back(shape);
      } else if (flag == "--shape") {
        options.shapes.push_back(parse_gemm_shape(value()));
      } else if (flag == "--configs") {
        options.configs.clear();
        std::istringstream names(value());
        for (std::string name; std::getline(names, name, ',');) options.configs.push_back(name);
      } else if (flag == "--no-sustained") {
        options.sustained = false;
      } else if (flag == "--no-interleaved") {
        options.interleaved = false;
      } else if (flag == "--no-check") {
        options.check = false;
      } else if (flag == "--seconds") {
        options.block_seconds = std::stod(value());
      } else if (flag == "--interleaved-ms") {
        options.interleaved_milliseconds = std::stod(value());
      } else if (flag == "--rounds") {
        options.sustained_rounds = std::stoi(value());
      } else if (flag == "--json") {
        json = value();
      } else {
        throw coda::UsageError("gemm_cuda: unknown option " + flag);
      }
    }
    const auto report = bench_gemm(options, true);
    std::cout << report.table();
    if (!json.empty()) std::ofstream(json) << report.json();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
