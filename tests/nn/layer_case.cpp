// Runs a Transformer layer or head on the CPU backend, on tensors of a safetensors file, and writes
// what it computes: tests/python compares its error with PyTorch's.
//   coda_layer_case layer|head IN OUT
// layer (M tokens, widths d and F): x1 = y0 W0' + x0; y1 = swiglu(rms_norm(x1, n0) W1'), W1 =
// [gate; up]; x2 = y1 W2' + x1; qkv = rope(rms_norm(x2, n1) W3'), q and k rotated, with the
// gradients of all eight for d_x2 and d_qkv. head: loss = mean cross-entropy of h Wl' with
// `targets`, with its gradients. Tiles and weights are taken, computed and returned as bf16; norm
// weights, their gradients and the loss are f32.

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/check.h"
#include "coda/nn.h"
#include "plan/compile.h"
#include "train/safetensors.h"

namespace coda {
namespace {

constexpr double kEps = 1e-6;
constexpr std::int64_t kHeadDim = 64;

/// One case: inputs that a graph makes are bound to the file's tensors of those names.
class LayerCase {
 public:
  explicit LayerCase(const std::string& path) : file_(path) {}

  std::int64_t rows(const std::string& name) const { return file_.at(name).shape[0]; }
  std::int64_t cols(const std::string& name) const { return file_.at(name).shape[1]; }

  Tensor tile(const std::string& name) {
    read(name, DType::bf16, rows(name), cols(name));
    return graph_.tile(name, cols(name), DType::bf16);
  }
  Tensor weight(const std::string& name) {
    read(name, DType::bf16, rows(name), cols(name));
    return graph_.weight(name, rows(name), cols(name), DType::bf16);
  }
  Tensor row(const std::string& name) {
    read(name, DType::f32, 1, rows(name));
    return graph_.row(name, rows(name));
  }
  Tensor integers(const std::string& name) {
    HostTensor t(DType::i64, rows(name), 1);
    const std::vector<std::int64_t> values = read_i64(file_.at(name), "case");
    std::copy(values.begin(), values.end(), t.as<std::int64_t>().begin());
    memory_[name] = std::move(t);
    return graph_.col(name, DType::i64);
  }
  Tensor frequencies() {
    const std::vector<float> values = rope_frequencies(kHeadDim, 1e4);
    HostTensor t(DType::f32, 1, kHeadDim);
    std::copy(values.begin(), values.end(), t.as<float>().begin());
    memory_["freq"] = std::move(t);
    return graph_.row("freq", kHeadDim);
  }

  void layer() {
    const Tensor x0 = tile("x0"), y0 = tile("y0");
    const Tensor w0 = weight("W0"), w1 = weight("W1"), w2 = weight("W2"), w3 = weight("W3");
    const Tensor n0 = row("n0"), n1 = row("n1");
    const std::int64_t d = cols("x0");
    const Tensor pos = integers("pos"), freq = frequencies();
    const Tensor x1 = linear(y0, w0) + x0;
    const Tensor y1 = swiglu(linear(rms_norm(x1, n0, kEps), w1), Pairs::halves());
    const Tensor x2 = linear(y1, w2) + x1;
    const Tensor z = linear(rms_norm(x2, n1, kEps), w3);
    const Tensor rotated = rope(coda::cols(z, 0, 2 * d), pos, freq);
    const Tensor qkv = cat_cols({rotated, coda::cols(z, 2 * d, 3 * d)});
    request_.outputs = {{"x2", x2, tile("d_x2"), true}, {"qkv", qkv, tile("d_qkv"), true}};
    request_.wrt = {x0, y0, w0, n0, w1, w2, n1, w3};
  }

  void head() {
    const Tensor h = tile("h"), w = weight("Wl");
    const Tensor loss = cross_entropy(linear(h, w), integers("targets"));
    request_.outputs = {{"loss", loss, graph_.constant(1), true}};
    request_.wrt = {h, w};
  }

  void run(const std::string& out) {
    CompileOptions options;
    options.dtype = options.output_dtype = options.weight_grad_dtype = DType::bf16;
    const auto plan = compile(graph_, request_, options);
    const auto backend = make_cpu_backend();
    const auto session = backend->prepare(plan, tokens_);
    std::vector<std::string> outputs;
    for (const Buffer& b : plan->buffers) {
      if (b.role == Role::output) {
        memory_[b.name] = HostTensor(b.dtype, b.rows == kTokens ? tokens_ : b.rows, b.cols);
        outputs.push_back(b.name);
      }
      if (b.role == Role::output || b.role == Role::input) {
        session->bind(b.name, memory_.at(b.name).view());
      }
    }
    session->run(Phase::forward, tokens_);
    session->run(Phase::backward, tokens_);
    write(outputs, out);
  }

 private:
  void read(const std::string& name, DType dtype, std::int64_t rows, std::int64_t cols) {
    const std::vector<float> values = read_f32(file_.at(name), "case");
    HostTensor t(dtype, rows, cols);
    for (std::size_t i = 0; i < values.size(); ++i) t.set(static_cast<std::int64_t>(i), values[i]);
    memory_[name] = std::move(t);
    if (name == "x0" || name == "h") tokens_ = rows;
  }

  void write(const std::vector<std::string>& names, const std::string& path) {
    std::vector<std::vector<float>> values;
    std::vector<StoredTensor> tensors;
    values.reserve(names.size());
    for (const std::string& name : names) {
      const HostTensor& t = memory_.at(name);
      std::vector<float>& v = values.emplace_back();
      for (std::int64_t i = 0; i < t.size(); ++i) v.push_back(static_cast<float>(t.get(i)));
      tensors.push_back({name, "F32", {t.rows(), t.cols()}, std::as_bytes(std::span(v))});
    }
    write_safetensors(path, tensors, {});
  }

  SafetensorsFile file_;
  Graph graph_;
  CompileRequest request_;
  std::map<std::string, HostTensor> memory_;
  std::int64_t tokens_ = 0;
};

int run(const std::string& what, const std::string& in, const std::string& out) {
  LayerCase c(in);
  if (what == "layer") {
    c.layer();
  } else if (what == "head") {
    c.head();
  } else {
    throw_error<UsageError>("layer_case: expected layer or head, got \"{}\".", what);
  }
  c.run(out);
  return 0;
}

}  // namespace
}  // namespace coda

int main(int argc, char** argv) {
  if (argc != 4) {
    fmt::print(stderr, "usage: coda_layer_case layer|head IN OUT\n");
    return 2;
  }
  try {
    return coda::run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "coda_layer_case: {}\n", error.what());
    return 1;
  }
}
