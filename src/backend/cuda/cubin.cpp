#include "backend/cuda/cubin.h"

#include <elf.h>

#include <cstring>
#include <vector>

#include "base/check.h"

namespace coda::cuda {
namespace {

/// Copies a T out of the bytes; the file may be truncated or hostile.
template <class T>
T read_at(std::string_view bytes, std::size_t offset, const std::string& entry) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) {
    throw_error<BackendError>("cubin({}): expected an ELF file, got one cut short", entry);
  }
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string name_at(std::string_view bytes, std::size_t offset, const std::string& entry) {
  read_at<char>(bytes, offset, entry);
  const auto end = bytes.find('\0', offset);
  return std::string(bytes.substr(offset, end == bytes.npos ? bytes.npos : end - offset));
}

}  // namespace

CubinResources read_cubin(std::string_view cubin, const std::string& entry) {
  const auto header = read_at<Elf64_Ehdr>(cubin, 0, entry);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    throw_error<BackendError>("cubin({}): expected an ELF file, got something else", entry);
  }
  std::vector<Elf64_Shdr> sections;
  for (int i = 0; i < header.e_shnum; ++i) {
    sections.push_back(read_at<Elf64_Shdr>(cubin, header.e_shoff + i * sizeof(Elf64_Shdr), entry));
  }
  if (header.e_shstrndx >= sections.size()) {
    throw_error<BackendError>("cubin({}): expected section names, got none", entry);
  }
  const auto names = sections[header.e_shstrndx].sh_offset;

  CubinResources resources;
  bool found = false;
  const Elf64_Shdr* symbols = nullptr;
  const Elf64_Shdr* info = nullptr;
  const Elf64_Shdr* own_info = nullptr;
  for (const auto& section : sections) {
    const auto name = name_at(cubin, names + section.sh_name, entry);
    if (name == ".text." + entry) {
      found = true;
      resources.registers = static_cast<int>(section.sh_info >> 24);
    } else if (name == ".nv.shared." + entry) {
      resources.shared_bytes = static_cast<int>(section.sh_size);
    } else if (name == ".symtab") {
      symbols = &section;
    } else if (name == ".nv.info") {
      info = &section;
    } else if (name == ".nv.info." + entry) {
      own_info = &section;
    }
  }
  if (!found || !symbols || !info || symbols->sh_link >= sections.size()) {
    throw_error<BackendError>("cubin: expected a kernel named {}, got none", entry);
  }

  // .nv.info holds attributes: format, code, then two bytes of value, or of length if format is 4.
  constexpr unsigned char kHasLength = 4, kFrameSize = 0x11, kRegisterCount = 0x2f,
                          kMaxThreads = 0x05;
  const auto strings = sections[symbols->sh_link].sh_offset;
  for (std::size_t at = info->sh_offset; at + 4 <= info->sh_offset + info->sh_size;) {
    const auto format = read_at<unsigned char>(cubin, at, entry);
    const auto code = read_at<unsigned char>(cubin, at + 1, entry);
    const auto length = read_at<std::uint16_t>(cubin, at + 2, entry);
    if (format == kHasLength && length >= 8 && (code == kFrameSize || code == kRegisterCount)) {
      const auto symbol_index = read_at<std::uint32_t>(cubin, at + 4, entry);
      const auto value = read_at<std::uint32_t>(cubin, at + 8, entry);
      const auto symbol =
          read_at<Elf64_Sym>(cubin, symbols->sh_offset + symbol_index * sizeof(Elf64_Sym), entry);
      if (name_at(cubin, strings + symbol.st_name, entry) == entry) {
        (code == kFrameSize ? resources.frame_bytes : resources.registers) =
            static_cast<int>(value);
      }
    }
    at += 4 + (format == kHasLength ? length : 0);
  }
  for (std::size_t at = own_info ? own_info->sh_offset : 0;
       own_info && at + 4 <= own_info->sh_offset + own_info->sh_size;) {
    const auto format = read_at<unsigned char>(cubin, at, entry);
    const auto length = read_at<std::uint16_t>(cubin, at + 2, entry);
    if (format == kHasLength && read_at<unsigned char>(cubin, at + 1, entry) == kMaxThreads) {
      resources.max_threads = static_cast<int>(read_at<std::uint32_t>(cubin, at + 4, entry));
    }
    at += 4 + (format == kHasLength ? length : 0);
  }
  return resources;
}

}  // namespace coda::cuda
