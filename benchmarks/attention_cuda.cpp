// Attention of one case, forward and backward, by our kernels or cuDNN's: results to files, times
// to standard output. attention_torch.py writes the case, runs this and compares with PyTorch.
//   attention_cuda FOLDER own|cudnn [turns]
// FOLDER/case.txt: dtype, heads, key-value heads, head_dim, max_tokens, offsets of the sequences.
// FOLDER/{q,k,v,d_o}: rows of [tokens, heads * head_dim], two bytes an element.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "backend/cuda/attention_cudnn.h"
#include "base/check.h"

namespace {

using namespace coda;
using namespace coda::cuda;

struct Case {
  AttentionVariant variant;
  Attrs attrs;
  std::int64_t max_tokens = 0;
  std::vector<std::int32_t> offsets;
};

Case read_case(const std::string& folder) {
  std::ifstream file(folder + "/case.txt");
  Case c;
  std::string dtype;
  file >> dtype >> c.attrs.index >> c.attrs.index2 >> c.variant.head_dim >> c.max_tokens;
  for (std::int32_t offset; file >> offset;) c.offsets.push_back(offset);
  if (c.offsets.size() < 2) throw_error<UsageError>("{}/case.txt: expected a case", folder);
  c.variant.dtype = dtype == "f16" ? DType::f16 : DType::bf16;
  c.attrs.period = c.variant.head_dim;
  c.attrs.value = 1 / std::sqrt(static_cast<double>(c.variant.head_dim));
  return c;
}

class Run {
 public:
  Run(const std::string& folder, bool cudnn) : folder_(folder), case_(read_case(folder)) {
    const std::int64_t wide = case_.attrs.index * case_.variant.head_dim;
    const std::int64_t narrow = case_.attrs.index2 * case_.variant.head_dim;
    const DType dtype = case_.variant.dtype;
    tokens_ = case_.offsets.back();
    const auto sequences = static_cast<std::int64_t>(case_.offsets.size());
    add("q", dtype, wide);
    add("k", dtype, narrow);
    add("v", dtype, narrow);
    add("", DType::i32, sequences, 1);
    memory_.back().upload(case_.offsets.data(), case_.offsets.size() * 4, stream_);
    add("", dtype, wide);
    add("", DType::f32, case_.attrs.index);
    add("d_o", dtype, wide);
    for (const std::int64_t columns : {wide, narrow, narrow}) add("", dtype, columns);
    for (const bool backward : {false, true}) {
      AttentionVariant variant = case_.variant;
      variant.backward = backward;
      const std::array<std::int64_t, kCudnnOperands> strides = {
          wide, narrow, narrow, wide, case_.attrs.index, wide, wide, narrow, narrow};
      const std::size_t bytes =
          cudnn_attention_workspace_bytes(case_.attrs, variant, case_.max_tokens, strides);
      const DevicePointer workspace = memory_.emplace_back(bytes).pointer();
      std::unique_ptr<StepKernel> step;
      if (cudnn) {
        auto made = std::make_unique<CudnnAttentionStep>(case_.attrs, variant, case_.max_tokens,
                                                         workspace, bytes);
        made->bind(operands(backward), tokens_);
        if (!made->why_own().empty()) throw_error<UsageError>("cudnn: {}", made->why_own());
        step = std::move(made);
      } else {
        step = std::make_unique<OwnAttention>(case_.attrs, variant, workspace);
        step->bind(operands(backward), tokens_);
      }
      steps_.push_back(std::move(step));
    }
  }

  void time(int turns) {
    for (const auto& step : steps_) step->launch(stream_);
    for (const std::size_t direction : {0, 1}) {
      std::vector<double> times;
      for (int turn = 0; turn < turns; ++turn) {
        Event start, end;
        start.record(stream_);
        steps_[direction]->launch(stream_);
        end.record(stream_);
        stream_.synchronize();
        times.push_back(end.milliseconds_since(start));
      }
      std::sort(times.begin(), times.end());
      fmt::print("{} {:.4f}\n", direction == 0 ? "forward" : "backward", times[times.size() / 2]);
    }
  }

  /// Writes results; says whether a second run, on poisoned results, gives the same bits.
  void check() {
    std::vector<std::vector<char>> first;
    bool same = true;
    for (const bool again : {false, true}) {
      for (const std::size_t i : kResults) {
        DeviceBuffer& buffer = memory_[i];
        buffer.fill(0xff, stream_);
      }
      for (const auto& step : steps_) step->launch(stream_);
      for (std::size_t r = 0; r < std::size(kResults); ++r) {
        DeviceBuffer& buffer = memory_[kResults[r]];
        std::vector<char> bytes(buffer.bytes());
        buffer.download(bytes.data(), bytes.size(), stream_);
        if (again) {
          same = same && bytes == first[r];
        } else {
          std::ofstream(folder_ + "/" + kNames[r], std::ios::binary)
              .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
          first.push_back(std::move(bytes));
        }
      }
    }
    fmt::print("repeats {}\n", same ? 1 : 0);
  }

 private:
  static constexpr std::size_t kResults[] = {4, 5, 7, 8, 9};
  static constexpr const char* kNames[] = {"o", "lse", "d_q", "d_k", "d_v"};

  void add(const std::string& name, DType dtype, std::int64_t columns, std::int64_t rows = -1) {
    if (rows < 0) rows = tokens_;
    std::vector<char> bytes(static_cast<std::size_t>(rows * columns) * size_of(dtype));
    DeviceBuffer& buffer = memory_.emplace_back(bytes.size());
    if (!name.empty()) {
      std::ifstream(folder_ + "/" + name, std::ios::binary)
          .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      buffer.upload(bytes.data(), bytes.size(), stream_);
    }
    stream_.synchronize();
    views_.push_back({reinterpret_cast<void*>(buffer.pointer()), dtype, rows, columns, columns});
  }
  std::span<const TensorView> operands(bool backward) const {
    return {views_.data(), backward ? 10u : 6u};
  }

  std::string folder_;
  Case case_;
  std::int64_t tokens_ = 0;
  Stream stream_;
  std::vector<DeviceBuffer> memory_;
  std::vector<TensorView> views_;
  std::vector<std::unique_ptr<StepKernel>> steps_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "attention_cuda FOLDER own|cudnn [turns]\n");
    return 2;
  }
  try {
    Device::get().use();
    Run run(argv[1], std::string(argv[2]) == "cudnn");
    if (argc > 3) run.time(std::atoi(argv[3]));
    run.check();
  } catch (const std::exception& error) {
    fmt::print(stderr, "attention_cuda: {}\n", error.what());
    return 1;
  }
  return 0;
}
