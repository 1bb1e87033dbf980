#include "backend/cuda/bench_gemm.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <sstream>

#include "backend/cuda/cublas.h"
#include "backend/cuda/device_check.h"
#include "base/check.h"
#include "base/median.h"

namespace coda::cuda {
namespace {

/// Operands in fresh buffers, rows packed.
struct Operands {
  DeviceBuffer a, b, c;
  GemmOperands view;

  Operands(const GemmShape& s, const DeviceCheck& device, const Stream& stream)
      : a(s.m * s.k * size_of(s.operand)),
        b(s.n * s.k * size_of(s.operand)),
        c(s.m * s.n * size_of(s.output)) {
    const auto block = [](const DeviceBuffer& buffer, Major major, std::int64_t mn,
                          std::int64_t k) {
      return major == Major::k ? MatrixBlock{buffer.pointer(), mn, k, k}
                               : MatrixBlock{buffer.pointer(), k, mn, mn};
    };
    view.a = block(a, s.a, s.m, s.k);
    view.b = {block(b, s.b, s.n, s.k)};
    view.c = {{c.pointer(), s.m, s.n, s.n}};
    device.fill(a.pointer(), s.operand, s.m * s.k, 1);
    device.fill(b.pointer(), s.operand, s.n * s.k, 2);
    poison(s, stream);
  }
  /// NaN everywhere; zero where the product is added to what is there.
  void poison(const GemmShape& s, const Stream& stream) { c.fill(s.accumulate ? 0 : 0xff, stream); }
};

struct Contender {
  std::string name;
  std::function<void()> launch;
  std::vector<double> turns;  ///< milliseconds, interleaved
  double interleaved = 0, sustained = 0;
  double error = 0;
};

double time_once(const Stream& stream, const std::function<void()>& launch, int count) {
  Event start, end;
  start.record(stream);
  for (int i = 0; i < count; ++i) launch();
  end.record(stream);
  end.synchronize();
  return end.milliseconds_since(start) / count;
}

void race_interleaved(const Stream& stream, std::vector<Contender>& contenders, double total_ms,
                      double budget_ms) {
  const int rounds = std::clamp(static_cast<int>(budget_ms / total_ms), 7, 60);
  std::vector<Event> marks(contenders.size() + 1);
  for (int round = -2; round < rounds; ++round) {  // two to warm up
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      marks[i].record(stream);
      contenders[i].launch();
    }
    marks.back().record(stream);
    marks.back().synchronize();
    for (std::size_t i = 0; i < contenders.size() && round >= 0; ++i) {
      contenders[i].turns.push_back(marks[i + 1].milliseconds_since(marks[i]));
    }
  }
  for (auto& contender : contenders) contender.interleaved = median(contender.turns);
}

void race_sustained(const Stream& stream, std::vector<Contender>& contenders, double seconds,
                    int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (auto& contender : contenders) {
      const double each = contender.interleaved > 0 ? contender.interleaved
                                                    : time_once(stream, contender.launch, 3);
      const int half = std::max(1, static_cast<int>(std::ceil(seconds * 1000 / each / 2)));
      for (int i = 0; i < half; ++i) contender.launch();
      contender.sustained += time_once(stream, contender.launch, half) / rounds;
    }
  }
}

/// Error of the last rows and of rows in the middle (a full reference would take longer than all
/// the rest).
double slice_error(const GemmShape& s, const Operands& operands, DeviceCheck& device) {
  double worst = 0;
  constexpr std::int64_t kSlice = 128;
  const std::int64_t rows = std::min(kSlice, s.m);
  for (const std::int64_t first : {s.m - rows, (s.m - rows) / 2 / 8 * 8}) {
    device.make_reference(s, operands.view, first, rows);
    MatrixBlock c = operands.view.c[0];
    c.pointer += first * c.stride * size_of(s.output);
    const auto report = device.compare(c, s.output);
    if (report.not_finite > 0) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, report.relative);
  }
  return worst;
}

std::vector<std::string> expand(const BenchGemmOptions& options, const std::string& picked) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const auto& name : options.configs) {
    if (name == "picked") {
      add(picked);
    } else if (name == "all") {
      for (const auto& candidate : gemm_candidates()) add(candidate.name);
    } else {
      add(gemm_candidate(name).name);
    }
  }
  return names;
}

BenchGemmRow bench_shape(const GemmShape& s, const BenchGemmOptions& options, const Stream& stream,
                         Cublas& cublas, DeviceCheck& device, const GemmWorkspace& workspace) {
  Operands operands(s, device, stream);
  const std::string picked = choose_config(s, Device::get().sm_count()).name;
  const auto names = expand(options, picked);
  std::vector<Gemm> gemms;
  for (const auto& name : names) {
    gemms.emplace_back(s, operands.view, workspace, &gemm_candidate(name));
  }
  std::vector<Contender> contenders;
  contenders.push_back({"cublas", [&] { cublas.gemm(s, operands.view); }, {}, 0, 0, 0});
  for (std::size_t i = 0; i < gemms.size(); ++i) {
    contenders.push_back(
        {names[i], [&stream, &gemm = gemms[i]] { gemm.launch(stream); }, {}, 0, 0, 0});
  }

  double total_ms = 0;
  for (auto& contender : contenders) {
    operands.poison(s, stream);
    contender.launch();
    if (options.check) contender.error = slice_error(s, operands, device);
    total_ms += time_once(stream, contender.launch, 2);
  }
  if (options.interleaved) {
    race_interleaved(stream, contenders, total_ms, options.interleaved_milliseconds);
  }
  if (options.sustained) {
    race_sustained(stream, contenders, options.block_seconds, options.sustained_rounds);
  }

  BenchGemmRow row;
  row.shape = s;
  row.cublas_interleaved_ms = contenders[0].interleaved;
  row.cublas_sustained_ms = contenders[0].sustained;
  row.cublas_error = contenders[0].error;
  const auto ratio = [](double cublas_ms, double ours) { return ours > 0 ? cublas_ms / ours : 0; };
  for (std::size_t i = 1; i < contenders.size(); ++i) {
    const auto& ours = contenders[i];
    row.entries.push_back({ours.name, ours.interleaved, ours.sustained,
                           ratio(contenders[0].interleaved, ours.interleaved),
                           ratio(contenders[0].sustained, ours.sustained), ours.error,
                           ours.name == picked});
  }
  return row;
}

std::string row_text(const BenchGemmRow& row) {
  std::string text;
  const double flops = 2.0 * row.shape.m * row.shape.n * row.shape.k;
  for (const auto& entry : row.entries) {
    const double ms = entry.sustained_ms > 0 ? entry.sustained_ms : entry.interleaved_ms;
    text += fmt::format(
        "{:<28} {:<24}{} I {:8.4f} / {:8.4f} = {:.3f}  S {:8.4f} / {:8.4f} = {:.3f}"
        "  {:4.0f} TFLOP/s  err {:.2e} ({:.2e})\n",
        to_text(row.shape), entry.config, entry.picked ? "*" : " ", row.cublas_interleaved_ms,
        entry.interleaved_ms, entry.interleaved_ratio, row.cublas_sustained_ms, entry.sustained_ms,
        entry.sustained_ratio, flops / ms * 1e-9, entry.error, row.cublas_error);
  }
  return text;
}

Major major_of(char letter, bool is_a) {
  // Letters follow BLAS: A "N" and B "T" are K-major.
  return (letter == 'N') == is_a ? Major::k : Major::mn;
}

}  // namespace

std::string to_text(const GemmShape& s) {
  std::string text = fmt::format("{} {} {} {}", s.layout(), s.m, s.n, s.k);
  if (s.operand != DType::bf16 || s.output != DType::bf16) {
    text += fmt::format(" {} {}", name_of(s.operand), name_of(s.output));
  }
  return s.accumulate ? text + " add" : text;
}

GemmShape parse_gemm_shape(const std::string& text) {
  std::istringstream in(text);
  GemmShape shape;
  std::string layout, word;
  in >> layout >> shape.m >> shape.n >> shape.k;
  const bool known = layout == "NT" || layout == "NN" || layout == "TN" || layout == "TT";
  if (!in || !known || shape.m < 1 || shape.n < 1 || shape.k < 1) {
    throw_error<UsageError>(
        "bench gemm: expected a shape such as \"NT 16384 2048 2048\" (NT, NN, TN or TT; M, N, K), "
        "got \"{}\"",
        text);
  }
  shape.a = major_of(layout[0], true);
  shape.b = major_of(layout[1], false);
  if (in >> word) shape.operand = shape.output = parse_dtype(word);
  if (in >> word) shape.output = parse_dtype(word);
  if (in >> word) shape.accumulate = word == "add";
  return shape;
}

namespace {

/// Forward, data gradient and weight gradient of weights [out, in], by kind.
std::vector<GemmShape> gemms_of(std::int64_t tokens,
                                const std::vector<std::pair<std::int64_t, std::int64_t>>& weights) {
  std::vector<GemmShape> shapes;
  const auto add = [&](std::int64_t m, std::int64_t n, std::int64_t k, Major a, Major b) {
    GemmShape shape;
    shape.m = m;
    shape.n = n;
    shape.k = k;
    shape.a = a;
    shape.b = b;
    shapes.push_back(shape);
  };
  for (const auto& [out, in] : weights) add(tokens, out, in, Major::k, Major::k);
  for (const auto& [out, in] : weights) add(tokens, in, out, Major::k, Major::mn);
  for (const auto& [out, in] : weights) add(out, in, tokens, Major::mn, Major::mn);
  return shapes;
}

std::vector<std::pair<std::int64_t, std::int64_t>> layer_weights(std::int64_t d) {
  const std::int64_t f = (8 * d / 3 + 255) / 256 * 256;
  return {{d, d}, {2 * f, d}, {d, f}, {3 * d, d}};
}

}  // namespace

std::vector<GemmShape> layer_gemms(std::int64_t tokens, std::int64_t d, std::int64_t vocab) {
  auto weights = layer_weights(d);
  weights.emplace_back(vocab, d);
  return gemms_of(tokens, weights);
}

std::vector<GemmShape> sweep_gemms() {
  std::vector<GemmShape> shapes;
  for (const std::int64_t tokens : {1000, 4095, 32768}) {
    for (const std::int64_t d : {1536, 3072, 5120}) {
      auto weights = layer_weights(d);
      weights.emplace_back(1000, d);
      for (const auto& shape : gemms_of(tokens, weights)) shapes.push_back(shape);
    }
  }
  return shapes;
}

BenchGemmReport bench_gemm(const BenchGemmOptions& options, bool verbose) {
  const Stream stream;
  Cublas cublas(stream);
  DeviceCheck device(stream);
  const GemmWorkspace workspace(stream);
  BenchGemmReport report;
  report.device = Device::get().name();
  report.cublas = cublas.version();

  // Compile what will be needed, several at once.
  std::vector<KernelSource> sources;
  for (const auto& shape : options.shapes) {
    const auto picked = choose_config(shape, Device::get().sm_count()).name;
    for (const auto& name : expand(options, picked)) {
      GemmVariant variant;
      variant.operand = shape.operand;
      variant.output = shape.output;
      variant.accumulate = shape.accumulate;
      variant.a = shape.a;
      variant.b = shape.b;
      sources.push_back(gemm_source(gemm_candidate(name), variant));
    }
  }
  std::sort(sources.begin(), sources.end(),
            [](const auto& x, const auto& y) { return x.text < y.text; });
  sources.erase(std::unique(sources.begin(), sources.end(),
                            [](const auto& x, const auto& y) { return x.text == y.text; }),
                sources.end());
  KernelStore::get().prepare(sources);

  for (const auto& shape : options.shapes) {
    report.rows.push_back(bench_shape(shape, options, stream, cublas, device, workspace));
    if (verbose) {
      static const auto begin = std::chrono::steady_clock::now();
      const std::chrono::duration<double> since = std::chrono::steady_clock::now() - begin;
      std::fprintf(stderr, "at %.2f s\n%s", since.count(), row_text(report.rows.back()).c_str());
      std::fflush(stderr);
    }
  }
  return report;
}

std::string BenchGemmReport::table() const {
  std::string text = fmt::format(
      "{}, cuBLAS {}: cuBLAS ms / ours = ratio (above 1: ours is faster)\n", device, cublas);
  double log_i = 0, log_s = 0, least_i = 1e9, least_s = 1e9;
  int count = 0;
  for (const auto& row : rows) {
    text += row_text(row);
    for (const auto& entry : row.entries) {
      if (!entry.picked) continue;
      log_i += std::log(std::max(entry.interleaved_ratio, 1e-9));
      log_s += std::log(std::max(entry.sustained_ratio, 1e-9));
      least_i = std::min(least_i, entry.interleaved_ratio);
      least_s = std::min(least_s, entry.sustained_ratio);
      ++count;
    }
  }
  if (count > 0) {
    text += fmt::format(
        "picked, {} shapes: geometric mean I {:.4f}, S {:.4f}; least I {:.4f}, S "
        "{:.4f}\n",
        count, std::exp(log_i / count), std::exp(log_s / count), least_i, least_s);
  }
  return text;
}

std::string BenchGemmReport::json() const {
  std::string text =
      fmt::format("{{\"device\": \"{}\", \"cublas\": \"{}\", \"rows\": [", device, cublas);
  bool first_row = true;
  for (const auto& row : rows) {
    text += fmt::format(
        "{}\n {{\"shape\": \"{}\", \"cublas_interleaved_ms\": {:.6f}, "
        "\"cublas_sustained_ms\": {:.6f}, \"cublas_error\": {:.4e}, \"entries\": [",
        first_row ? "" : ",", to_text(row.shape), row.cublas_interleaved_ms,
        row.cublas_sustained_ms, row.cublas_error);
    first_row = false;
    bool first = true;
    for (const auto& entry : row.entries) {
      text += fmt::format(
          "{}\n  {{\"config\": \"{}\", \"picked\": {}, \"interleaved_ms\": {:.6f}, "
          "\"sustained_ms\": {:.6f}, \"error\": {:.4e}}}",
          first ? "" : ",", entry.config, entry.picked, entry.interleaved_ms, entry.sustained_ms,
          std::isfinite(entry.error) ? entry.error : -1.0);
      first = false;
    }
    text += "]}";
  }
  return text + "\n]}\n";
}

}  // namespace coda::cuda
