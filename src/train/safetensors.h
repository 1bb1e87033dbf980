// Safetensors files: 8 bytes of header length (little-endian), a JSON header, then the tensors.
// The reader checks everything before it hands anything out, so that no file, however broken, can
// make it read outside the mapping. The writer replaces a file as a whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/file.h"

namespace coda {

/// One tensor of a file. `dtype` is the file's own name for it (F32, BF16, I64, ...), since files
/// hold more types than coda computes in. `bytes` may be unaligned: read it through read_*.
struct StoredTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;

  std::int64_t size() const;  ///< elements
};

/// "F32[4, 16]"
std::string describe(const StoredTensor& tensor);

/// A mapped file; the tensors' bytes live as long as it does.
class SafetensorsFile {
 public:
  /// Throws UsageError naming file, tensor, what was expected and what came.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// In order of their bytes.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// nullptr if absent.
  const StoredTensor* find(std::string_view name) const;
  /// Throws UsageError if absent.
  const StoredTensor& at(std::string_view name) const;
  /// The free text fields of "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

/// Elements as fp32, from F64, F32, F16 or BF16; other types throw UsageError naming `file`.
void read_f32(const StoredTensor& tensor, std::span<float> out, std::string_view file);
std::vector<float> read_f32(const StoredTensor& tensor, std::string_view file);
/// As above in double, so that an F64 keeps its digits.
std::vector<double> read_f64(const StoredTensor& tensor, std::string_view file);
/// Elements as int64, from I64, I32, I16, I8, U8, U16 or U32.
std::vector<std::int64_t> read_i64(const StoredTensor& tensor, std::string_view file);

/// Header and data of a file with these tensors, in the given order. Names must be unique and sizes
/// right (InternalError otherwise). The chunks view `tensors`; `header` owns the first of them.
struct SafetensorsImage {
  std::string header;
  std::vector<std::span<const std::byte>> chunks;
};
SafetensorsImage safetensors_image(std::span<const StoredTensor> tensors,
                                   const std::map<std::string, std::string>& metadata);

/// Replaces `path` atomically.
void write_safetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors,
                       const std::map<std::string, std::string>& metadata);

/// The tensors of a Hugging Face folder: model.safetensors, or the shards that
/// model.safetensors.index.json names. Opening checks that every tensor is where the index says.
class ModelFolder {
 public:
  /// Throws UsageError.
  explicit ModelFolder(const std::filesystem::path& folder);

  struct Entry {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };
  /// nullptr members if absent.
  Entry find(std::string_view name) const;
  std::vector<std::string> names() const;
  /// model.safetensors or the index, for messages.
  const std::filesystem::path& source() const { return source_; }

 private:
  std::filesystem::path source_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace coda
