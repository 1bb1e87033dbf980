#include "train/tokenizer_export.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>

#include "train/tokenizer_json.h"

namespace coda {
namespace {

using json = nlohmann::ordered_json;

json special(int id, const std::string& text) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

/// "<s> $A": what add_special_tokens does.
json begin_with(const std::string& bos, int id) {
  const json token = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const auto sequence = [](const char* name, int type) {
    return json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", json::array({token, sequence("A", 0)})},
          {"pair", json::array({token, sequence("A", 0), token, sequence("B", 1)})},
          {"special_tokens",
           {{bos, {{"id", bos}, {"ids", json::array({id})}, {"tokens", json::array({bos})}}}}}};
}

json tokenizer(json added, json normalizer, json pre_tokenizer, json post, json decoder,
               json model) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", std::move(normalizer)},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", std::move(post)},
          {"decoder", std::move(decoder)},
          {"model", std::move(model)}};
}

json bpe(json vocab, json merges, json unk, bool byte_fallback) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", std::move(unk)},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", byte_fallback},
          {"byte_fallback", byte_fallback},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

/// SentencePiece keeps no merges: every way to cut a piece into two pieces is one, in the order of
/// the piece's id, then of the parts' ids.
json merges_of(std::span<const Piece> pieces) {
  std::unordered_map<std::string_view, int> ids;
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    const Piece& p = pieces[id];
    if (!p.control && !p.unknown && !p.byte) ids[p.text] = static_cast<int>(id);
  }
  std::vector<std::tuple<int, int, int>> found;
  for (const auto& [text, id] : ids) {
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = ids.find(text.substr(0, cut));
      const auto right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end()) {
        found.emplace_back(id, left->second, right->second);
      }
    }
  }
  std::sort(found.begin(), found.end());
  json merges = json::array();
  for (const auto& [id, left, right] : found) {
    merges.push_back(json::array({pieces[static_cast<std::size_t>(left)].text,
                                  pieces[static_cast<std::size_t>(right)].text}));
  }
  return merges;
}

json config(const char* bos, const char* eos) {
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"bos_token", bos},
          {"eos_token", eos},
          {"clean_up_tokenization_spaces", false},
          {"split_special_tokens", true},  // "<s>" in a text is three letters, no control
          {"model_max_length", 1000000000}};
}

}  // namespace

std::string piece_tokenizer_config() {
  json root = config("<s>", "</s>");
  root["unk_token"] = "<unk>";
  return root.dump(2) + "\n";
}

std::string piece_tokenizer_json(std::span<const Piece> pieces) {
  json vocab = json::object(), added = json::array();
  int bos = 1;
  // push_back, not operator[]: an ordered object searches its keys one by one.
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const int id = static_cast<int>(i);
    vocab.get_ref<json::object_t&>().emplace_back(pieces[i].text, id);
    if (pieces[i].control || pieces[i].unknown) added.push_back(special(id, pieces[i].text));
    if (pieces[i].text == "<s>") bos = id;
  }
  const json normalizer = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  const json decoder = {
      {"type", "Sequence"},
      {"decoders",
       json::array({{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                    {{"type", "ByteFallback"}},
                    {{"type", "Fuse"}}})}};
  return tokenizer(added, normalizer, nullptr, begin_with("<s>", bos), decoder,
                   bpe(vocab, merges_of(pieces), "<unk>", true))
             .dump() +
         "\n";
}

std::string byte_tokenizer_config() {
  json root = config("<s>", "</s>");
  root["coda_tokenizer"] = "bytes";
  return root.dump(2) + "\n";
}

std::string byte_tokenizer_json() {
  json vocab = json::object();
  int id = 0;
  for (const std::string& letter : byte_letters()) vocab[letter] = id++;
  vocab["<s>"] = id;
  vocab["</s>"] = id + 1;
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", false},
                           {"use_regex", false}};
  return tokenizer(json::array({special(id, "<s>"), special(id + 1, "</s>")}), nullptr, byte_level,
                   begin_with("<s>", id), byte_level, bpe(vocab, json::array(), nullptr, false))
             .dump() +
         "\n";
}

}  // namespace coda
