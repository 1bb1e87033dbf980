#include "train/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/convert.h"
#include "nn/json_object.h"

namespace coda {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensors are stored little-endian");

constexpr std::uint64_t kHeaderLimit = 100'000'000;  // the format's own bound

struct StoredType {
  std::string_view name;
  std::size_t size;
};

constexpr std::array<StoredType, 15> kStoredTypes{{
    {"F64", 8},
    {"F32", 4},
    {"F16", 2},
    {"BF16", 2},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"I64", 8},
    {"I32", 4},
    {"I16", 2},
    {"I8", 1},
    {"U64", 8},
    {"U32", 4},
    {"U16", 2},
    {"U8", 1},
    {"BOOL", 1},
}};

const StoredType* find_type(std::string_view name) {
  const auto* it = std::find_if(kStoredTypes.begin(), kStoredTypes.end(),
                                [&](const StoredType& t) { return t.name == name; });
  return it == kStoredTypes.end() ? nullptr : it;
}

std::string shown(std::string_view name) { return excerpt(json(std::string(name))); }

bool is_count(const json& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() <= (std::uint64_t{1} << 62);
}

/// What the header says of one tensor, against the size of the data after it.
StoredTensor parse_entry(const std::string& name, const json& entry, const std::string& file,
                         std::span<const std::byte> data) {
  const std::string where = fmt::format("{}: tensor {}", file, shown(name));
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.is_object() || !entry.contains(key)) {
      throw_error<UsageError>("{}: expected an object with dtype, shape and data_offsets, got {}.",
                              where, excerpt(entry));
    }
  }
  const json& dtype = entry["dtype"];
  const StoredType* type = dtype.is_string() ? find_type(dtype.get<std::string>()) : nullptr;
  if (type == nullptr) {
    throw_error<UsageError>(
        "{}: dtype: expected F64, F32, F16, BF16, I64, I32 or another of the "
        "format's types, got {}.",
        where, excerpt(dtype));
  }
  StoredTensor tensor{name, std::string(type->name), {}, {}};
  const json& shape = entry["shape"];
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_count)) {
    throw_error<UsageError>("{}: shape: expected a list of sizes, got {}.", where, excerpt(shape));
  }
  auto size = static_cast<std::int64_t>(type->size);
  for (const json& dim : shape) {
    tensor.shape.push_back(dim.get<std::int64_t>());
    if (__builtin_mul_overflow(size, tensor.shape.back(), &size)) {
      throw_error<UsageError>("{}: shape: expected less than 2^63 bytes, got {}.", where,
                              excerpt(shape));
    }
  }
  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !is_count(offsets[0]) ||
      !is_count(offsets[1]) || offsets[0].get<std::uint64_t>() > offsets[1].get<std::uint64_t>() ||
      offsets[1].get<std::uint64_t>() > data.size()) {
    throw_error<UsageError>(
        "{}: data_offsets: expected [begin, end] within the file's {} bytes of data, got {}. The "
        "file may be cut short: fetch it again.",
        where, data.size(), excerpt(offsets));
  }
  const auto begin = offsets[0].get<std::uint64_t>();
  const auto end = offsets[1].get<std::uint64_t>();
  if (end - begin != static_cast<std::uint64_t>(size)) {
    throw_error<UsageError>("{}: expected {} bytes for {}, got {} (data_offsets {}).", where, size,
                            describe(tensor), end - begin, excerpt(offsets));
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

/// The tensors must cover the data exactly: neither shared bytes nor hidden ones.
void check_cover(const std::vector<StoredTensor>& tensors, std::span<const std::byte> data,
                 const std::string& file) {
  const std::byte* next = data.data();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor& tensor = tensors[i];
    if (tensor.bytes.data() != next) {
      throw_error<UsageError>(
          "{}: tensor {}: expected to begin at byte {} of the data, got {} ({}).", file,
          shown(tensor.name), next - data.data(), tensor.bytes.data() - data.data(),
          tensor.bytes.data() < next ? "it overlaps " + shown(tensors[i - 1].name)
                                     : "a gap that no tensor covers");
    }
    next += tensor.bytes.size();
  }
  if (next != data.data() + data.size()) {
    throw_error<UsageError>("{}: expected the tensors to cover {} bytes of data, got {}.", file,
                            data.size(), next - data.data());
  }
}

template <class Stored, class Out, class Convert>
void convert_all(std::span<const std::byte> bytes, Out* out, Convert convert) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(Stored); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = static_cast<Out>(convert(value));
  }
}

template <class Out>
void read_float(const StoredTensor& tensor, Out* out, std::string_view file) {
  const auto same = [](auto value) { return value; };
  if (tensor.dtype == "F32") {
    convert_all<float>(tensor.bytes, out, same);
  } else if (tensor.dtype == "F64") {
    convert_all<double>(tensor.bytes, out, same);
  } else if (tensor.dtype == "BF16") {
    convert_all<std::uint16_t>(tensor.bytes, out, f32_from_bf16);
  } else if (tensor.dtype == "F16") {
    convert_all<std::uint16_t>(tensor.bytes, out, f32_from_f16);
  } else {
    throw_error<UsageError>("{}: tensor {}: expected F32, F64, BF16 or F16, got {}.", file,
                            shown(tensor.name), describe(tensor));
  }
}

}  // namespace

std::int64_t StoredTensor::size() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::string describe(const StoredTensor& tensor) {
  return fmt::format("{}[{}]", tensor.dtype, fmt::join(tensor.shape, ", "));
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path), file_(path) {
  const std::string file = path.string();
  const std::span<const std::byte> bytes = file_.bytes();
  std::uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    throw_error<UsageError>(
        "{}: expected a safetensors file (8 bytes of header length first), got "
        "{} bytes.",
        file, bytes.size());
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > bytes.size() - sizeof(length) || length > kHeaderLimit) {
    throw_error<UsageError>(
        "{}: header: expected a length of at most {} bytes (what follows it), got {}. The file is "
        "cut short or not in the safetensors format.",
        file, std::min<std::uint64_t>(bytes.size() - sizeof(length), kHeaderLimit), length);
  }
  const std::span<const std::byte> data = bytes.subspan(sizeof(length) + length);
  const json header =
      parse_json_object(file_.text().substr(sizeof(length), length), file + ": header");
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      tensors_.push_back(parse_entry(name, entry, file, data));
      continue;
    }
    if (!entry.is_object()) {
      throw_error<UsageError>("{}: __metadata__: expected an object, got {}.", file,
                              excerpt(entry));
    }
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) {
        throw_error<UsageError>("{}: __metadata__: {}: expected text, got {}.", file, shown(key),
                                excerpt(value));
      }
      metadata_[key] = value.get<std::string>();
    }
  }
  // Empty tensors sort before the one that begins at the same byte.
  std::sort(tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::make_tuple(a.bytes.data(), a.bytes.size(), std::string_view(a.name)) <
           std::make_tuple(b.bytes.data(), b.bytes.size(), std::string_view(b.name));
  });
  check_cover(tensors_, data, file);
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

const StoredTensor& SafetensorsFile::at(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) {
    throw_error<UsageError>("{}: expected a tensor {}, got {} others.", path_.string(), shown(name),
                            tensors_.size());
  }
  return *tensor;
}

void read_f32(const StoredTensor& tensor, std::span<float> out, std::string_view file) {
  internal_check(out.size() == static_cast<std::size_t>(tensor.size()),
                 "read_f32: {}: expected room for {} elements, got {}", tensor.name, tensor.size(),
                 out.size());
  read_float(tensor, out.data(), file);
}

std::vector<float> read_f32(const StoredTensor& tensor, std::string_view file) {
  std::vector<float> values(static_cast<std::size_t>(tensor.size()));
  read_float(tensor, values.data(), file);
  return values;
}

std::vector<double> read_f64(const StoredTensor& tensor, std::string_view file) {
  std::vector<double> values(static_cast<std::size_t>(tensor.size()));
  read_float(tensor, values.data(), file);
  return values;
}

std::vector<std::int64_t> read_i64(const StoredTensor& tensor, std::string_view file) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.size()));
  const auto same = [](auto value) { return value; };
  if (tensor.dtype == "I64") {
    convert_all<std::int64_t>(tensor.bytes, values.data(), same);
  } else if (tensor.dtype == "I32") {
    convert_all<std::int32_t>(tensor.bytes, values.data(), same);
  } else if (tensor.dtype == "I16") {
    convert_all<std::int16_t>(tensor.bytes, values.data(), same);
  } else if (tensor.dtype == "I8") {
    convert_all<std::int8_t>(tensor.bytes, values.data(), same);
  } else if (tensor.dtype == "U32") {
    convert_all<std::uint32_t>(tensor.bytes, values.data(), same);
  } else if (tensor.dtype == "U16") {
    convert_all<std::uint16_t>(tensor.bytes, values.data(), same);
  } else if (tensor.dtype == "U8") {
    convert_all<std::uint8_t>(tensor.bytes, values.data(), same);
  } else {
    throw_error<UsageError>("{}: tensor {}: expected I64, I32 or a smaller integer, got {}.", file,
                            shown(tensor.name), describe(tensor));
  }
  return values;
}

SafetensorsImage safetensors_image(std::span<const StoredTensor> tensors,
                                   const std::map<std::string, std::string>& metadata) {
  SafetensorsImage image;
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const StoredTensor& tensor : tensors) {
    const StoredType* type = find_type(tensor.dtype);
    internal_check(type != nullptr, "safetensors: {}: unknown dtype {}", tensor.name, tensor.dtype);
    internal_check(tensor.bytes.size() == type->size * static_cast<std::size_t>(tensor.size()),
                   "safetensors: {}: {} bytes for {}", tensor.name, tensor.bytes.size(),
                   describe(tensor));
    internal_check(!header.contains(tensor.name), "safetensors: {} twice", tensor.name);
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
    image.chunks.push_back(tensor.bytes);
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // keeps the data 8-byte aligned, as others do
  const std::uint64_t length = text.size();
  image.header.resize(sizeof(length));
  std::memcpy(image.header.data(), &length, sizeof(length));
  image.header += text;
  return image;
}

void write_safetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  SafetensorsImage image = safetensors_image(tensors, metadata);
  image.chunks.insert(image.chunks.begin(), std::as_bytes(std::span(image.header)));
  replace_file(path, image.chunks);
}

ModelFolder::ModelFolder(const std::filesystem::path& folder) {
  const std::filesystem::path single = folder / "model.safetensors";
  const std::filesystem::path index_path = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single)) {
    source_ = single;
    files_.emplace_back(single);
    for (const StoredTensor& tensor : files_[0].tensors()) {
      entries_[tensor.name] = {&files_[0], &tensor};
    }
    return;
  }
  if (!std::filesystem::exists(index_path)) {
    throw_error<UsageError>(
        "{}: expected model.safetensors or model.safetensors.index.json, got neither. Give a "
        "Hugging Face model folder.",
        folder.string());
  }
  source_ = index_path;
  const std::string where = index_path.string();
  const json index = parse_json_object(read_file(index_path), where);
  if (!index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw_error<UsageError>("{}: expected an object \"weight_map\", got {}.", where,
                            excerpt(index));
  }
  std::map<std::string, std::size_t> shards;
  std::vector<std::pair<std::string, std::size_t>> places;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    // A shard lies in the same folder: a path that leaves it is refused.
    if (file.empty() || std::filesystem::path(file).filename() != file) {
      throw_error<UsageError>("{}: weight_map: {}: expected a file name in this folder, got {}.",
                              where, shown(name), excerpt(shard));
    }
    const auto [it, inserted] = shards.try_emplace(file, files_.size());
    if (inserted && !std::filesystem::exists(folder / file)) {
      throw_error<UsageError>(
          "{}: weight_map: expected a file {} in this folder for tensor {}, got nothing there. "
          "Fetch the missing file.",
          where, shown(file), shown(name));
    }
    if (inserted) files_.emplace_back(folder / file);
    places.emplace_back(name, it->second);
  }
  for (const auto& [name, shard] : places) {
    entries_[name] = {&files_[shard], &files_[shard].at(name)};
  }
}

ModelFolder::Entry ModelFolder::find(std::string_view name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? Entry{nullptr, nullptr} : it->second;
}

std::vector<std::string> ModelFolder::names() const {
  std::vector<std::string> result;
  for (const auto& [name, entry] : entries_) result.push_back(name);
  return result;
}

}  // namespace coda
