// Attention to a cache on a GPU against its definition; a decoder against the reference, token by
// token.
#include <cstring>

#include "backend/cuda/cached_attention_case.h"
#include "backend/cuda/gpu_test.h"
#include "backend/cuda/session.h"
#include "nn/models/llama_decoder.h"

namespace coda::cuda {
namespace {

class CudaCachedAttention : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) stream_ = std::make_unique<Stream>();
  }

  static std::size_t bytes_of(const TensorView& view) {
    return static_cast<std::size_t>(std::max<std::int64_t>(view.rows, 1) * view.stride) *
           size_of(view.dtype);
  }

  /// Twice on the same operands, the second time from a graph: the same bits.
  void run(const CacheCase& c, CacheOperands& operands) {
    const auto views = operands.views();
    DeviceBuffer workspace(cached_attention_bytes(operands.attrs, views[3].rows, operands.tokens));
    DeviceBuffer flag(sizeof(unsigned));
    flag.fill(0, *stream_);
    StepContext context;
    context.workspace = workspace.pointer();
    context.error_flag = flag.pointer();
    Plan plan;
    Step step;
    step.opaque = Opaque::cached_attention;
    step.attrs = operands.attrs;
    for (const TensorView& view : views) {
      Buffer buffer;
      buffer.dtype = view.dtype;
      step.slices.push_back(
          {static_cast<std::int32_t>(plan.buffers.size()), 0, 0, view.rows, view.cols});
      plan.buffers.push_back(buffer);
    }
    const auto kernel = make_cached_attention_kernel(step, plan, context);
    std::vector<std::vector<char>> first;
    for (const bool captured : {false, true}) {
      workspace.fill(0xff, *stream_);
      std::vector<DeviceBuffer> buffers;
      std::vector<TensorView> bound;
      for (TensorView view : views) {
        DeviceBuffer& buffer = buffers.emplace_back(bytes_of(view));
        buffer.upload(view.data, bytes_of(view), *stream_);
        view.data = reinterpret_cast<void*>(buffer.pointer());
        bound.push_back(view);
      }
      kernel->bind(bound, operands.tokens);
      if (captured) {
        Graph::capture(*stream_, [&] { kernel->launch(*stream_); }).launch(*stream_);
      } else {
        kernel->launch(*stream_);
      }
      std::vector<std::vector<char>> results;
      for (const std::size_t i : {3, 4, 7}) {
        auto& bytes = results.emplace_back(bytes_of(views[i]));
        buffers[i].download(bytes.data(), bytes.size(), *stream_);
      }
      if (captured) {
        EXPECT_TRUE(results == first) << "other bits the second time";
        std::size_t from = 0;
        for (const std::size_t i : {3, 4, 7}) {
          std::memcpy(views[i].data, results[from].data(), results[from].size());
          ++from;
        }
      }
      first = std::move(results);
    }
    unsigned bad = 1;
    flag.download(&bad, sizeof(bad), *stream_);
    EXPECT_EQ(bad, 0u) << to_text(c);
  }

  void expect_all(std::initializer_list<CacheCase> cases) {
    for (const CacheCase& c : cases) {
      expect_definition(c,
                        [&](const CacheCase& of, CacheOperands& operands) { run(of, operands); });
    }
  }

  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaCachedAttention, AgreesWithTheDefinition) {
  expect_all({
      {DType::bf16, 32, 8, 64, 2100, {2000}, {1}},
      {DType::bf16, 32, 8, 64, 2100, {0}, {1}},
      {DType::bf16, 8, 2, 64, 600, {200}, {256}},
      {DType::bf16, 8, 8, 128, 5000, {4500}, {1}},
      {DType::bf16, 4, 2, 64, 300, {0, 63, 0, 255}, {1, 2, 70, 1}},
      {DType::bf16, 6, 2, 64, 70, {3, 9, 64}, {5, 0, 6}, true, DType::i64},
      {DType::f16, 2, 1, 136, 90, {80, 2}, {3, 1}},
      {DType::f16, 4, 2, 320, 200, {129}, {7}},
      {DType::f32, 6, 6, 5, 200, {130, 0}, {1, 9}, false},
      {DType::f32, 4, 2, 64, 700, {600}, {1}},
      {DType::f32, 4, 4, 100, 700, {64}, {64}},
      {DType::bf16, 32, 8, 64, 2100, {2000}, {1}, true, DType::i32, 1},
      {DType::bf16, 8, 2, 128, 5000, {4500, 17}, {1, 9}, true, DType::i32, 700, 3},
      {DType::f16, 4, 2, 64, 600, {200}, {256}, true, DType::i32, 100},
      {DType::f32, 6, 6, 5, 200, {130, 0}, {1, 9}, false, DType::i64, 65, 0.5},
      {DType::f32, 4, 2, 64, 700, {600}, {1}, true, DType::i32, 0, 30},
  });
}

/// For compute-sanitizer (scripts/sanitize_gpu.sh).
TEST_F(CudaCachedAttention, SmallShapes) {
  expect_all({{DType::bf16, 4, 2, 64, 150, {0, 100}, {5, 1}},
              {DType::f32, 2, 1, 20, 70, {64}, {1}, false}});
}

/// A model with random weights.
class Decoding {
 public:
  Decoding(Backend& backend, const LlamaConfig& config, DType dtype, std::int64_t capacity)
      : model_(config, {dtype, {}, false}, backend), config_(config) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (LlamaModel::Parameter& p : model_.parameters()) {
      const float spread =
          p.weight.is_vector ? 0.2f : 1 / std::sqrt(static_cast<float>(p.weight.cols));
      for (float& x : p.value.as<float>()) {
        x = (p.weight.is_vector ? 1.0f : 0.0f) + spread * normal(random);
      }
    }
    model_.values_changed();
    decoder_ = std::make_unique<LlamaDecoder>(model_, capacity);
  }
  std::vector<float> append(std::span<const std::int32_t> tokens) {
    std::vector<float> logits(static_cast<std::size_t>(config_.vocab_size), NAN);
    decoder_->append(tokens, logits);
    return logits;
  }
  LlamaDecoder& decoder() { return *decoder_; }

 private:
  LlamaModel model_;
  LlamaConfig config_;
  std::unique_ptr<LlamaDecoder> decoder_;
};

LlamaConfig small_config() {
  LlamaConfig c;
  c.vocab_size = 301;
  c.hidden_size = 96;
  c.intermediate_size = 160;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 6;
  c.num_key_value_heads = 2;
  c.head_dim = 16;
  c.max_position_embeddings = 600;
  return c;
}

TEST_F(CudaCachedAttention, GreedyDecodingEqualsTheReference) {
  const auto gpu = make_cuda_backend();
  const auto reference = make_reference_backend(DType::f32);
  Decoding got(*gpu, small_config(), DType::f32, 400),
      want(*reference, small_config(), DType::f32, 400);
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 300; ++i) ids.push_back(i * 37 % 301);  // two runs: 256 and 44 rows
  std::vector<std::int32_t> again;
  std::vector<float> first;
  for (int i = 0; i < 60; ++i) {
    const auto ours = got.append(ids), theirs = want.append(ids);
    double difference = 0, total = 0;
    for (std::size_t v = 0; v < ours.size(); ++v) {
      difference += (ours[v] - theirs[v]) * (ours[v] - theirs[v]);
      total += theirs[v] * theirs[v];
    }
    ASSERT_LE(std::sqrt(difference / total), 2e-5) << "token " << i;
    const auto best = [](const std::vector<float>& logits) {
      return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                       logits.begin());
    };
    ASSERT_EQ(best(ours), best(theirs)) << "token " << i;
    if (i == 1) first = ours, again = ids;
    ids.assign(1, best(ours));
  }
  got.decoder().rewind(300);
  EXPECT_EQ(got.append(again), first) << "other bits the second time";
}

}  // namespace
}  // namespace coda::cuda
