// Time of a training step of a LLaMA on the GPU: forward, backward and AdamW, whole and step by
// step of the plan. Weights and tokens are random; nothing is read or written.
//   step_cuda [--d 2048] [--layers 16] [--heads 32] [--kv-heads 8] [--d-ff 8192] [--vocab 128256]
//             [--seq 8192] [--batch 2] [--held-price 0] [--turns 10] [--untied]
//             [--recompute-products] [--pieces 1] [--memory GIB] [--accumulate] [--stdin]
// --memory: products run again until all that is trained and the plan take that much at most.
// --accumulate: gradients are added to, in memory of their own, as a step of several micro-batches
// needs.
// --stdin: one step for each line that is read, as benchmarks/train_step_cuda.py does.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/arena.h"
#include "backend/backend_tensor.h"
#include "backend/cuda/session.h"
#include "base/convert.h"
#include "base/median.h"
#include "coda/nn.h"
#include "nn/fit_plan.h"
#include "nn/models/llama.h"
#include "plan/compile.h"

namespace {

using namespace coda;

struct Options {
  std::int64_t d = 2048, layers = 16, heads = 32, kv_heads = 8, d_ff = 8192, vocab = 128256;
  std::int64_t seq = 8192, batch = 2, turns = 10, pieces = 1;
  double held_price = 0, memory = 0;
  bool tied = true, from_stdin = false, accumulate = false, recompute_products = false;
};

Options parse(int argc, char** argv) {
  Options o;
  const std::map<std::string, std::int64_t*> numbers = {
      {"--d", &o.d},         {"--layers", &o.layers},
      {"--heads", &o.heads}, {"--kv-heads", &o.kv_heads},
      {"--d-ff", &o.d_ff},   {"--vocab", &o.vocab},
      {"--seq", &o.seq},     {"--batch", &o.batch},
      {"--turns", &o.turns}, {"--pieces", &o.pieces}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--untied") {
      o.tied = false;
    } else if (name == "--stdin") {
      o.from_stdin = true;
    } else if (name == "--accumulate") {
      o.accumulate = true;
    } else if (name == "--recompute-products") {
      o.recompute_products = true;
    } else if (i + 1 < argc && name == "--held-price") {
      o.held_price = std::atof(argv[++i]);
    } else if (i + 1 < argc && name == "--memory") {
      o.memory = std::atof(argv[++i]) * (1 << 30);
    } else if (const auto it = numbers.find(name); it != numbers.end() && i + 1 < argc) {
      *it->second = std::atoll(argv[++i]);
    } else {
      fmt::print(stderr, "step_cuda: unknown argument {}\n", name);
      std::exit(2);
    }
  }
  return o;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Everything that the plan is bound to: weights of size 1 / sqrt(columns), gradients of zero.
class Memory {
 public:
  Memory(Backend& gpu, const Plan& plan, Session& session, const Options& o) {
    const std::int64_t tokens = o.seq * o.batch;
    for (const Buffer& b : plan.buffers) {
      if (b.role != Role::input && b.role != Role::output) continue;
      const Extents extents =
          b.kind == Kind::list ? Extents{1, o.batch + 1} : extents_of(b, tokens);
      BackendTensor tensor(gpu, b.dtype, extents.rows, extents.cols);
      if (b.role == Role::input) fill(tensor, b, o);
      session.bind(b.name, tensor.view());
      tensors_.emplace(b.name, std::move(tensor));
    }
  }
  BackendTensor& at(const std::string& name) { return tensors_.at(name); }

  /// The floats that an input holds, before they are rounded to its type.
  static std::vector<float> values_of(const Buffer& b, const Options& o) {
    const float size = b.kind == Kind::scalar ? 1.0f / static_cast<float>(o.seq * o.batch)
                       : b.kind == Kind::row  ? 1.0f
                                              : 1.7f / std::sqrt(static_cast<float>(b.cols));
    const std::int64_t rows = b.kind == Kind::weight ? b.rows : 1;
    const std::int64_t cols = b.kind == Kind::scalar ? 1 : b.cols;
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    std::uint32_t state = 12345;
    for (float& v : values) {
      state = state * 1664525u + 1013904223u;
      v = b.kind == Kind::weight ? size * (static_cast<float>(state >> 8) * 0x1p-23f - 1.0f) : size;
    }
    return values;
  }

 private:
  void fill(BackendTensor& tensor, const Buffer& b, const Options& o) {
    const auto count = static_cast<std::size_t>(tensor.view().rows * tensor.view().cols);
    if (!is_float(b.dtype)) {
      std::vector<std::int32_t> values(count);
      for (std::size_t i = 0; i < count; ++i) {
        const auto row = static_cast<std::int64_t>(i);
        values[i] = static_cast<std::int32_t>(b.kind == Kind::list    ? row * o.seq
                                              : b.name == "positions" ? row % o.seq
                                                                      : row * 7919 % o.vocab);
      }
      tensor.upload(values.data());
      return;
    }
    if (b.name == "rope_freq") {
      tensor.upload(rope_frequencies(b.cols, 500000.0).data());
      return;
    }
    const std::vector<float> values = values_of(b, o);
    if (values.size() != count) throw std::logic_error("step_cuda: no values for " + b.name);
    if (b.dtype == DType::f32) {
      tensor.upload(values.data());
      return;
    }
    std::vector<std::uint16_t> rounded(count);
    for (std::size_t i = 0; i < count; ++i) rounded[i] = bf16_from_f32(values[i]);
    tensor.upload(rounded.data());
  }

  std::map<std::string, BackendTensor> tensors_;
};

/// The name of a step without what tells layers apart.
std::string kind_of(const Step& step) {
  if (!step.program) {
    return step.opaque == Opaque::attention            ? "attention"
           : step.opaque == Opaque::attention_backward ? "attention_backward"
           : step.opaque == Opaque::embedding          ? "embedding"
                                                       : "embedding_backward";
  }
  std::string name;
  for (const char c : step.program->name) {
    if (c < '0' || c > '9') name += c;
  }
  const char* form = step.program->form == Form::gemm   ? "gemm "
                     : step.program->form == Form::rows ? "rows "
                                                        : "vectors ";
  return form + name.substr(0, 70);
}

/// Answers each line of stdin with what `step` gives, after a few steps of warming up.
void step_for_each_line(const std::function<std::string()>& step) {
  for (int i = 0; i < 3; ++i) step();
  const auto say = [](const std::string& text) {
    fmt::print("{}\n", text);
    std::fflush(stdout);
  };
  say("{\"ready\": true}");
  for (std::string line; std::getline(std::cin, line);) say(step());
}

/// Bytes that values, moments and gradients of their own take.
double state_bytes(const LlamaConfig& config, const Options& o) {
  double bytes = 0;
  for (const LlamaWeight& w : llama_weights(config)) {
    bytes += static_cast<double>(w.rows * w.cols) * (3 * 4 + (o.accumulate ? 4 : 0));
  }
  return bytes;
}

std::shared_ptr<const Plan> compile_step(const LlamaConfig& config, const Options& o) {
  const auto compile_held = [&](double held) {
    Graph graph;
    const LlamaGraph model = build_llama(graph, config, DType::bf16);
    CompileRequest request;
    request.outputs.push_back({"loss", model.loss, graph.scalar("d_loss"), true});
    request.wrt = model.weights;
    CompileOptions options;
    options.dtype = DType::bf16;
    options.output_dtype = options.weight_grad_dtype = DType::f32;
    options.accumulate_weight_grads = o.accumulate;
    options.own_weight_grads = !o.accumulate;
    options.held_price = o.held_price;
    options.memory_budget = held;
    options.budget_tokens = o.seq * o.batch;
    options.recompute_products = o.recompute_products || held > 0;
    options.pieces = static_cast<std::int32_t>(o.pieces);
    return compile(graph, request, options);
  };
  if (o.memory <= 0) return compile_held(0);
  return fit_plan(compile_held, o.seq * o.batch, o.memory - state_bytes(config, o));
}

int run(const Options& o) {
  LlamaConfig config;
  config.hidden_size = o.d;
  config.num_hidden_layers = o.layers;
  config.num_attention_heads = o.heads;
  config.num_key_value_heads = o.kv_heads;
  config.head_dim = o.d / o.heads;
  config.intermediate_size = o.d_ff;
  config.vocab_size = o.vocab;
  config.tie_word_embeddings = o.tied;
  config.max_position_embeddings = o.seq;
  const std::int64_t tokens = o.seq * o.batch;

  coda::cuda::CudaBackend gpu;
  double start = now();
  const auto plan = compile_step(config, o);
  std::FILE* const notes = o.from_stdin ? stderr : stdout;
  fmt::print(notes, "plan: {:.1f} s, {} + {} steps\n", now() - start, plan->forward.size(),
             plan->backward.size());
  start = now();
  coda::cuda::CudaSession session(gpu, plan, tokens);
  fmt::print(notes, "kernels: {:.1f} s\n", now() - start);
  Memory memory(gpu, *plan, session, o);

  std::vector<BackendTensor> owned;
  std::vector<AdamWTensor> weights;
  for (const LlamaWeight& w : llama_weights(config)) {
    AdamWTensor t;
    t.count = w.rows * w.cols;
    t.decays = !w.is_vector;
    t.gradient = (o.accumulate ? memory.at("d_" + w.name).view() : session.buffer("d_" + w.name))
                     .as<float>();
    for (float** p : {&t.value, &t.first, &t.second}) {
      if (p == &t.value && w.is_vector) {
        t.value = memory.at(w.name).view().as<float>();
        continue;
      }
      if (p == &t.value) continue;
      owned.emplace_back(gpu, DType::f32, 1, t.count);
      *p = owned.back().view().as<float>();
    }
    if (!w.is_vector) {
      // What the rounded weights lack; zeros leave them what they are. An update leaves all as it
      // is: other weights might draw less power in what is timed after it, and make it faster.
      owned.emplace_back(gpu, DType::bf16, 1, t.count);
      t.low = owned.back().view().as<std::int16_t>();
      t.rounded = memory.at(w.name).view().data;
    }
    weights.push_back(t);
  }
  const auto adamw = gpu.make_adamw(weights);
  const auto zero_gradients = [&] {
    if (!o.accumulate) return;
    for (const LlamaWeight& w : llama_weights(config)) memory.at("d_" + w.name).fill_zero();
  };
  const auto forward_backward = [&] {
    zero_gradients();
    session.run(Phase::forward, tokens);
    session.run(Phase::backward, tokens);
  };
  const AdamWStep nothing{1.0f, 0.9f, 0.95f, 0.0f, 1.0f, 1e-8f, 1.0f};
  const auto milliseconds_of = [&](const auto& work) {
    std::vector<double> times;
    for (int turn = 0; turn < 5; ++turn) {
      coda::cuda::Event begin, end;
      begin.record(gpu.stream());
      work();
      end.record(gpu.stream());
      gpu.synchronize();
      times.push_back(end.milliseconds_since(begin));
    }
    return median(times);
  };
  const auto loss = [&] {
    float value = 0;
    memory.at("loss").download(&value);
    return value / static_cast<float>(tokens);
  };
  start = now();
  forward_backward();
  gpu.synchronize();
  fmt::print(notes, "first run: {:.2f} s\n", now() - start);
  std::size_t free = 0, total = 0;
  coda::cuda::driver().mem_get_info(&free, &total);
  fmt::print(
      notes,
      "memory: {:.1f} GiB in use: the plan's {:.1f}, values, AdamW's moments and gradients that "
      "are added to {:.1f}\n",
      static_cast<double>(total - free) / (1 << 30),
      static_cast<double>(layout_arena(*plan, tokens).bytes) / (1 << 30),
      state_bytes(config, o) / (1 << 30));

  if (o.from_stdin) {
    step_for_each_line([&] {
      const double begin = now();
      forward_backward();
      const float value = loss();
      const double middle = now();
      adamw->gradient_square_sum();
      adamw->update(nothing);
      gpu.synchronize();
      return fmt::format("{{\"loss\": {}, \"seconds\": {}, \"passes_seconds\": {}}}", value,
                         now() - begin, middle - begin);
    });
    fmt::print("{{\"lost_bytes\": {}}}\n", total - free);
    return 0;
  }

  std::vector<double> passes;
  float last_loss = 0;
  for (std::int64_t turn = 0; turn < o.turns + 2; ++turn) {
    gpu.synchronize();
    start = now();
    forward_backward();
    last_loss = loss();
    if (turn >= 2) passes.push_back(now() - start);
  }
  std::vector<double> updates;
  for (std::int64_t turn = 0; turn < 5; ++turn) {
    gpu.synchronize();
    start = now();
    const double norm = std::sqrt(adamw->gradient_square_sum());
    adamw->update(nothing);
    gpu.synchronize();
    updates.push_back(now() - start);
    if (turn == 0) fmt::print("loss {:.4f}, gradient norm {:.4f}\n", last_loss, norm);
  }
  const double step = median(passes);
  fmt::print(
      "forward + backward: median {:.2f} ms of {} (fastest {:.2f}), {:.1f}k tokens/s; norm + AdamW "
      "{:.2f} ms\n",
      step * 1e3, o.turns, *std::min_element(passes.begin(), passes.end()) * 1e3,
      static_cast<double>(tokens) / step * 1e-3, median(updates) * 1e3);

  const double zero = milliseconds_of(zero_gradients);
  const double forward = milliseconds_of([&] { session.run(Phase::forward, tokens); });
  const double backward = milliseconds_of([&] { session.run(Phase::backward, tokens); });
  fmt::print("on the device: gradients to zero {:.2f}, forward {:.2f}, backward {:.2f} ms\n", zero,
             forward, backward);

  struct Row {
    double ms = 0, flops = 0, bytes = 0;
    int count = 0;
  };
  // Turns without a pause, so that the chip is as warm, and its clock as low, as in training.
  std::vector<std::vector<double>> turns[2];
  for (std::int64_t turn = 0; turn < o.turns; ++turn) {
    turns[0].push_back(session.timed_run(Phase::forward, tokens));
    turns[1].push_back(session.timed_run(Phase::backward, tokens));
  }
  double first_turn = 0;
  for (const auto& of_phase : turns) {
    first_turn += std::accumulate(of_phase[0].begin(), of_phase[0].end(), 0.0);
  }
  std::vector<double> step_times[2];
  for (const int phase : {0, 1}) {
    for (std::size_t i = 0; i < turns[phase][0].size(); ++i) {
      std::vector<double> of_step;
      for (const auto& times : turns[phase]) of_step.push_back(times[i]);
      step_times[phase].push_back(median(of_step));
    }
  }
  double in_all = 0;
  for (const Phase phase : {Phase::forward, Phase::backward}) {
    const auto& steps = phase == Phase::forward ? plan->forward : plan->backward;
    const std::vector<double>& times = step_times[phase == Phase::forward ? 0 : 1];
    std::map<std::string, Row> rows;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Cost cost = cost_of(steps[i], *plan, tokens);
      Row& row = rows[kind_of(steps[i])];
      row.ms += times[i];
      row.flops += cost.flops;
      row.bytes += cost.bytes;
      ++row.count;
    }
    std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
    double sum = 0;
    for (const auto& [name, row] : sorted) {
      sum += row.ms;
      fmt::print("{:9.3f} ms {:4} x {:7.1f} TFLOP/s {:7.2f} TB/s  {}\n", row.ms, row.count,
                 row.flops / row.ms * 1e-9, row.bytes / row.ms * 1e-9, name);
    }
    fmt::print("{:9.3f} ms {}\n", sum, phase == Phase::forward ? "forward" : "backward");
    in_all += sum;
  }
  fmt::print("{:9.3f} ms step by step, medians of {} turns; the first turn {:.3f} ms\n", in_all,
             o.turns, first_turn);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "step_cuda: {}\n", error.what());
    return 1;
  }
}
