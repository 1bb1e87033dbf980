#include "train/speed.h"

#include <unistd.h>

#include <fstream>

namespace coda {

double training_flops_per_token(const LlamaConfig& config, std::int64_t seq) {
  const auto d = static_cast<double>(config.hidden_size);
  const double embedding = static_cast<double>(config.vocab_size) * d;
  const auto layers = static_cast<double>(config.num_hidden_layers);
  const double vectors = (2 * layers + 1) * d;
  const double weights = static_cast<double>(parameter_count(config)) - vectors -
                         (config.tie_word_embeddings ? 0.0 : embedding);
  const double pairs = static_cast<double>(seq) / 2;
  const auto width = static_cast<double>(config.num_attention_heads * config.head_dim);
  return 6 * weights + 12 * layers * width * pairs;
}

std::optional<double> known_peak(std::string_view device, DType dtype) {
  struct Peak {
    std::string_view name;
    double half, single;  // bf16 and f16 with tensor cores; f32 without
  };
  constexpr Peak kPeaks[] = {
      {"H200", 989e12, 67e12}, {"H100", 989e12, 67e12}, {"A100", 312e12, 19.5e12}};
  const auto has = [&](std::string_view text) { return device.find(text) != device.npos; };
  if (has("NVL") || has("PCIe")) return std::nullopt;  // other clocks
  for (const Peak& peak : kPeaks) {
    if (has(peak.name)) return dtype == DType::f32 ? peak.single : peak.half;
  }
  return std::nullopt;
}

std::int64_t resident_memory() {
  std::ifstream file("/proc/self/statm");  // in pages: all, resident, ...
  std::int64_t all = 0, resident = 0;
  if (!(file >> all >> resident)) return 0;
  return resident * sysconf(_SC_PAGE_SIZE);
}

}  // namespace coda
