#include "train/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/convert.h"
#include "train/file.h"
#include "train/safetensors.h"

namespace coda {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kMetricsFile = "metrics.jsonl";
constexpr const char* kRecentLosses = "recent_losses";
constexpr const char* kStep = "step";
constexpr const char* kSkipped = "skipped";  // in a row, of the last steps

fs::path fresh(const fs::path& path) { return fs::path(path) += ".new"; }

void write_fresh(const fs::path& path, std::span<const StoredTensor> tensors,
                 const Progression& run) {
  SafetensorsImage image = safetensors_image(tensors, {{"format", "pt"},
                                                       {kStep, fmt::format("{}", run.done)},
                                                       {kSkipped, fmt::format("{}", run.skipped)}});
  image.chunks.insert(image.chunks.begin(), std::as_bytes(std::span(image.header)));
  write_file(fresh(path), image.chunks);
}

StoredTensor stored_f32(std::string name, const Parameter& p, std::span<const float> values) {
  return {std::move(name), "F32", p.shape, std::as_bytes(values)};
}

std::vector<std::vector<std::uint16_t>> rounded_to_bf16(const std::vector<Parameter>& parameters) {
  std::vector<std::vector<std::uint16_t>> rounded;
  for (const Parameter& p : parameters) {
    auto& values = rounded.emplace_back(p.value.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = bf16_from_f32(p.value[i]);
  }
  return rounded;
}

/// What a file's metadata count under that name; -1 if nothing or no count stands there.
std::int64_t count_of(const SafetensorsFile& file, const char* name) {
  const auto it = file.metadata().find(name);
  if (it == file.metadata().end()) return -1;
  const std::string& text = it->second;
  std::int64_t count = -1;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), count);
  return result.ec == std::errc() && result.ptr == text.data() + text.size() ? count : -1;
}

/// The step that a file was written at.
std::int64_t step_of(const SafetensorsFile& file) {
  const std::int64_t step = count_of(file, kStep);
  if (step < 0) {
    const auto it = file.metadata().find(kStep);
    throw_error<UsageError>(
        "{}: expected a training step in its metadata, got {}. This file was "
        "not written by `coda train`.",
        file.path().string(), it == file.metadata().end() ? "nothing" : "\"" + it->second + "\"");
  }
  return step;
}

void read_into(const SafetensorsFile& file, const std::string& name, const Parameter& p,
               std::span<float> out) {
  const StoredTensor& tensor = file.at(name);
  if (tensor.shape != p.shape) {
    throw_error<UsageError>("{}: tensor \"{}\": expected shape [{}], got {}.", file.path().string(),
                            name, fmt::join(p.shape, ", "), describe(tensor));
  }
  read_f32(tensor, out, file.path().string());
  const auto bad = std::find_if(out.begin(), out.end(), [](float x) { return !std::isfinite(x); });
  if (bad != out.end()) {
    throw_error<UsageError>(
        "{}: tensor \"{}\": expected finite numbers, got {} at element {}. The file is damaged, or "
        "the training that wrote it diverged: use an earlier one.",
        file.path().string(), name, *bad, bad - out.begin());
  }
}

/// As read_into, of a tensor that a save wrote: fp32, or bits would be lost.
void restore(const SafetensorsFile& file, const std::string& name, const Parameter& p,
             std::span<float> out) {
  const StoredTensor& tensor = file.at(name);
  if (tensor.dtype != "F32") {
    throw_error<UsageError>("{}: tensor \"{}\": expected F32, got {}.", file.path().string(), name,
                            describe(tensor));
  }
  read_into(file, name, p, out);
}

/// A file must hold nothing but what was read from it.
void check_count(const SafetensorsFile& file, std::size_t expected) {
  if (file.tensors().size() == expected) return;
  throw_error<UsageError>("{}: expected {} tensors, those of this run's model, got {}.",
                          file.path().string(), expected, file.tensors().size());
}

/// What lies in a folder under a name that begins so, in the order of names.
std::vector<fs::path> entries_of(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

Checkpoint::Checkpoint(fs::path folder, DType dtype) : folder_(std::move(folder)), dtype_(dtype) {}

void Checkpoint::save(const Progression& run, const Model& model, AdamW& optimizer,
                      std::int64_t keep) const {
  model.fetch_values();
  optimizer.fetch();
  const std::vector<Parameter>& parameters = model.parameters();
  const bool bf16 = dtype_ == DType::bf16;
  std::vector<std::vector<std::uint16_t>> rounded;
  if (bf16) rounded = rounded_to_bf16(parameters);
  std::vector<StoredTensor> weights, state;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    weights.push_back(
        bf16 ? StoredTensor{p.name, "BF16", p.shape, std::as_bytes(std::span(rounded[i]))}
             : stored_f32(p.name, p, p.value));
    if (bf16) state.push_back(stored_f32("master." + p.name, p, p.value));
    state.push_back(stored_f32("first_moment." + p.name, p, optimizer.first_moment(i)));
    state.push_back(stored_f32("second_moment." + p.name, p, optimizer.second_moment(i)));
  }
  const std::span<const double> losses = run.recent.all();
  if (!losses.empty()) {
    state.push_back(
        {kRecentLosses, "F64", {static_cast<std::int64_t>(losses.size())}, std::as_bytes(losses)});
  }
  try {
    write_fresh(folder_ / kModelFile, weights, run);
    write_fresh(folder_ / kOptimizerFile, state, run);
  } catch (...) {  // on a full disk, half a file would only be in the way
    std::error_code unused;
    fs::remove(fresh(folder_ / kModelFile), unused);
    fs::remove(fresh(folder_ / kOptimizerFile), unused);
    throw;
  }
  rename_file(fresh(folder_ / kOptimizerFile), folder_ / kOptimizerFile);
  rename_file(fresh(folder_ / kModelFile), folder_ / kModelFile);
  if (keep > 0) keep_save(run.done, keep);
}

void Checkpoint::keep_save(std::int64_t step, std::int64_t keep) const {
  const fs::path all = folder_ / "checkpoints";
  const fs::path target = all / fmt::format("step-{:08}", step);
  const fs::path staging = fresh(all / fmt::format(".step-{:08}", step));
  try {
    for (const fs::path& left : entries_of(all, ".step-")) fs::remove_all(left);  // by a crash
    fs::create_directories(staging);
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const fs::path& from = entry.path();
      const std::string name = from.filename().string();
      if (!entry.is_regular_file() || name.starts_with('.') || name.ends_with(".new")) continue;
      // A later save replaces a file, it never writes into one: links stay as they are and take no
      // room. Metrics grow in place.
      std::error_code cannot_link;
      if (name != kMetricsFile) fs::create_hard_link(from, staging / name, cannot_link);
      if (name == kMetricsFile || cannot_link) {
        fs::copy_file(from, staging / name, fs::copy_options::overwrite_existing);
      }
    }
    fs::remove_all(target);  // of a stretch that a crash undid
    rename_file(staging, target);
    const std::vector<fs::path> saves = entries_of(all, "step-");
    for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < saves.size(); ++i) {
      fs::remove_all(saves[i]);
    }
  } catch (const fs::filesystem_error& e) {
    std::error_code unused;
    fs::remove_all(staging, unused);
    throw_error<BackendError>("{}: cannot keep the checkpoint: {}.", target.string(),
                              e.code().message());
  }
}

Progression Checkpoint::load(Model& model, AdamW& optimizer) const {
  const SafetensorsFile state(folder_ / kOptimizerFile);
  const std::int64_t step = step_of(state);
  const fs::path current = folder_ / kModelFile;
  const bool matches = fs::exists(current) && step_of(SafetensorsFile(current)) == step;
  if (!matches) {
    const fs::path next = fresh(current);
    if (!fs::exists(next) || step_of(SafetensorsFile(next)) != step) {
      throw_error<UsageError>(
          "{}: expected weights of step {} ({} is of that step), got {}. The two files must come "
          "from one save: restore them.",
          current.string(), step, kOptimizerFile,
          fs::exists(current) ? "another step" : "no such file");
    }
    rename_file(next, current);
  }
  const SafetensorsFile weights(current);
  const std::vector<Parameter>& parameters = model.parameters();
  const bool bf16 = dtype_ == DType::bf16;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (bf16) {
      restore(state, "master." + p.name, p, p.value);
    } else {
      restore(weights, p.name, p, p.value);
    }
    restore(state, "first_moment." + p.name, p, optimizer.first_moment(i));
    restore(state, "second_moment." + p.name, p, optimizer.second_moment(i));
  }
  const StoredTensor* losses = state.find(kRecentLosses);
  check_count(weights, parameters.size());
  check_count(state, parameters.size() * (bf16 ? 3 : 2) + (losses != nullptr ? 1 : 0));
  Progression run{step, RecentLosses(), std::max<std::int64_t>(0, count_of(state, kSkipped))};
  if (losses != nullptr) run.recent = RecentLosses(read_f64(*losses, state.path().string()));
  model.values_changed();
  optimizer.moments_changed();
  cut_metrics(step);
  return run;
}

void Checkpoint::cut_metrics(std::int64_t step) const {
  const fs::path path = folder_ / kMetricsFile;
  if (!fs::exists(path)) return;
  const std::string text = read_file(path);
  std::string kept;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // a crash cut the last line short
    const std::string line = text.substr(at, end + 1 - at);
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("step") && json["step"].is_number_integer() &&
        json["step"].get<std::int64_t>() <= step) {
      kept += line;
    }
    at = end + 1;
  }
  replace_file(path, kept);
}

void Checkpoint::log(std::string_view line) const {
  const fs::path path = folder_ / kMetricsFile;
  std::ofstream file(path, std::ios::app | std::ios::binary);
  file << line << '\n' << std::flush;
  if (!file) {
    throw_error<BackendError>("{}: cannot append a line: {}.", path.string(), std::strerror(errno));
  }
}

void load_weights(Model& model, const fs::path& folder) {
  const ModelFolder files(folder);
  std::set<std::string> unknown;
  for (const std::string& name : files.names()) {
    if (!name.ends_with("rotary_emb.inv_freq") && name != "lm_head.weight") unknown.insert(name);
  }
  for (const Parameter& p : model.parameters()) {
    const ModelFolder::Entry entry = files.find(p.name);
    if (entry.tensor == nullptr) {
      throw_error<UsageError>("{}: expected a tensor \"{}\" of shape [{}], got none of that name.",
                              files.source().string(), p.name, fmt::join(p.shape, ", "));
    }
    read_into(*entry.file, p.name, p, p.value);
    unknown.erase(p.name);
  }
  if (!unknown.empty()) {
    throw_error<UsageError>(
        "{}: expected only a LLaMA's tensors, got also \"{}\"{}.", files.source().string(),
        *unknown.begin(),
        unknown.size() > 1 ? fmt::format(" and {} more", unknown.size() - 1) : "");
  }
  model.values_changed();
}

}  // namespace coda
