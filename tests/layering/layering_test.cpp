// Checks every #include of the project against its layering: a folder includes only what stands
// left of it (docs/design.md), public headers include only the standard library and each other, and
// a library that belongs to one backend stays in its folder.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

/// Every folder under src/ that is a layer, and the layers that it may include besides itself.
const std::map<std::string, std::set<std::string>> kAllowed = [] {
  std::map<std::string, std::set<std::string>> allowed;
  allowed["base"] = {};
  allowed["ops"] = {"base"};
  allowed["ir"] = {"base", "ops"};
  allowed["graph"] = {"base", "ops", "ir"};
  allowed["tensor"] = {"base"};
  allowed["plan"] = {"base", "ops", "ir", "graph", "tensor"};
  const auto with = [&](const std::string& layer, std::set<std::string> more) {
    more.insert(allowed[layer].begin(), allowed[layer].end());
    more.insert(layer);
    return more;
  };
  allowed["backend"] = with("plan", {});
  for (const char* one : {"backend/reference", "backend/cpu", "backend/cuda"}) {
    allowed[one] = with("backend", {});  // and no other backend
  }
  allowed["nn"] = with("backend", {});
  allowed["train"] = with("nn", {});
  allowed["cli"] = with("train", {"backend/reference", "backend/cpu", "backend/cuda"});
  return allowed;
}();

/// Third-party headers (by prefix) that only one folder may see.
const std::map<std::string, std::string> kOwnedLibraries = {
    {"oneapi/", "backend/cpu"},    {"dnnl", "backend/cpu"},  {"hwy/", "backend/cpu"},
    {"sqlite3.h", "backend/cuda"}, {"cuda", "backend/cuda"}, {"nvrtc", "backend/cuda"},
    {"sentencepiece", "train"},    {"CLI/", "cli"},
};

/// Public headers whose layer their name does not give. `coda.h` includes all others: no folder
/// under src/ may include it.
const std::map<std::string, std::string> kPublicHeaders = {
    {"coda/error.h", "base"},     {"coda/version.h", "base"}, {"coda/compile.h", "plan"},
    {"coda/explain.h", "plan"},
                                                           {"coda/trainer.h", "train"},   {"coda/op.h", "ops"},       {"coda/program.h", "ir"},
    {"coda/coda.h", "everything"}};

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.rfind(prefix, 0) == 0;
}

/// The layer that a path relative to src/ lies in, or "" if none: the longest one that matches.
std::string layer_of(const std::string& path) {
  std::string best;
  for (const auto& [layer, unused] : kAllowed) {
    if (starts_with(path, layer + "/") && layer.size() > best.size()) best = layer;
  }
  return best;
}

/// One file of the project: its path relative to the project's root, and its text.
struct File {
  std::string path;
  std::string text;
};

struct Include {
  std::string name;
  bool quoted;
};

std::vector<Include> includes_of(const std::string& text) {
  std::vector<Include> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::string packed;  // the line without its blanks
    for (const char c : line) {
      if (c != ' ' && c != '\t') packed += c;
    }
    const std::string directive = "#include";
    if (!starts_with(packed, directive) || packed.size() <= directive.size() + 1) continue;
    const char open = packed[directive.size()];
    const auto end = packed.find(open == '<' ? '>' : '"', directive.size() + 1);
    if ((open != '<' && open != '"') || end == std::string::npos) continue;
    found.push_back({packed.substr(directive.size() + 1, end - directive.size() - 1), open == '"'});
  }
  return found;
}

bool is_standard(const std::string& name) {
  return name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789") == std::string::npos;
}

/// The layer that declares a public header: what kPublicHeaders says, or a folder of its name, or
/// the one folder with an internal header or source file of its name. "" if nothing tells.
std::string layer_of_public(const std::string& name, const std::vector<File>& files) {
  if (auto named = kPublicHeaders.find(name); named != kPublicHeaders.end()) return named->second;
  const std::string stem = fs::path(name).stem().string();
  if (kAllowed.count(stem)) return stem;
  std::set<std::string> layers;
  for (const File& file : files) {
    if (starts_with(file.path, "src/") && fs::path(file.path).stem() == stem) {
      layers.insert(layer_of(file.path.substr(4)));
    }
  }
  return layers.size() == 1 ? *layers.begin() : "";
}

/// Every include that breaks a rule, as a line that says which and why.
std::vector<std::string> violations(const std::vector<File>& files) {
  std::vector<std::string> found;
  for (const File& file : files) {
    const bool is_public = starts_with(file.path, "include/");
    const std::string layer =
        is_public ? layer_of_public(file.path.substr(std::string("include/").size()), files)
                  : layer_of(file.path.substr(std::string("src/").size()));
    if (layer.empty()) {
      found.push_back(file.path +
                      ": belongs to no layer. Put it in a folder of the design, or name "
                      "its layer in tests/layering.");
      continue;
    }
    const auto report = [&](const Include& include, const std::string& why) {
      found.push_back(file.path + ": includes " + include.name + ": " + why);
    };
    const auto require = [&](const Include& include, const std::string& target) {
      if (layer == "everything" || target == layer) return;
      if (target == "everything") {
        report(include, "include the one header that is needed");
      } else if (!kAllowed.at(layer).count(target)) {
        report(include, target + " is not left of " + layer);
      }
    };
    for (const Include& include : includes_of(file.text)) {
      if (starts_with(include.name, "coda/")) {
        const std::string target = layer_of_public(include.name, files);
        if (target.empty()) {
          report(include, "no such public header, or nothing tells its layer");
        } else {
          require(include, target);
        }
        continue;
      }
      if (is_public) {
        if (include.quoted || !is_standard(include.name)) {
          report(include, "a public header includes the standard library and coda/ only");
        }
        continue;
      }
      if (const std::string target = layer_of(include.name); !target.empty()) {
        require(include, target);
        continue;
      }
      for (const auto& [prefix, owner] : kOwnedLibraries) {
        if (starts_with(include.name, prefix) && layer != owner) {
          report(include, "only " + owner + " may use this library");
        }
      }
    }
  }
  return found;
}

std::vector<File> project_files() {
  const fs::path root = CODA_SOURCE_DIR;
  std::vector<File> files;
  for (const char* top : {"src", "include"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const fs::path extension = entry.path().extension();
      if (!entry.is_regular_file() || (extension != ".h" && extension != ".cpp")) continue;
      std::ifstream in(entry.path());
      std::stringstream text;
      text << in.rdbuf();
      files.push_back({fs::relative(entry.path(), root).generic_string(), text.str()});
    }
  }
  return files;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

TEST(Layering, EveryIncludeOfTheProjectIsAllowed) {
  const std::vector<File> files = project_files();
  ASSERT_GT(files.size(), 5u) << "found no sources under " << CODA_SOURCE_DIR;
  EXPECT_EQ(joined(violations(files)), "");
}

TEST(Layering, EveryFolderUnderSrcIsALayerOrInsideOne) {
  for (const auto& entry : fs::directory_iterator(fs::path(CODA_SOURCE_DIR) / "src")) {
    if (!entry.is_directory()) continue;
    EXPECT_TRUE(kAllowed.count(entry.path().filename().string())) << entry.path();
  }
}

/// A planted file, and a word of the complaint it must cause ("" if it must cause none).
struct Planted {
  File file;
  std::string complaint;
};

TEST(Layering, PlantedIncludesAreJudged) {
  const std::vector<Planted> cases = {
      {{"src/ops/a.cpp", "#include \"base/check.h\"\n"}, ""},
      {{"src/ops/a.cpp", "#include \"ir/b.h\"\n"}, "ir is not left of ops"},
      {{"src/ops/a.cpp", "  #  include \"ir/b.h\"  // why\n"}, "ir is not left of ops"},
      {{"src/tensor/a.cpp", "#include \"ops/b.h\"\n"}, "ops is not left of tensor"},
      {{"src/ir/a.h", "#include \"coda/graph.h\"\n"}, "graph is not left of ir"},
      {{"src/graph/a.h", "#include \"coda/coda.h\"\n"}, "the one header"},
      {{"src/backend/a.h", "#include \"backend/cpu/b.h\"\n"}, "backend/cpu is not left of backend"},
      {{"src/backend/cpu/a.h", "#include \"backend/backend.h\"\n"}, ""},
      {{"src/backend/cpu/a.h", "#include \"backend/reference/b.h\"\n"},
       "is not left of backend/cpu"},
      {{"src/backend/cpu/a.h", "#include <oneapi/dnnl/dnnl.hpp>\n"}, ""},
      {{"src/nn/models/a.cpp", "#include \"backend/backend.h\"\n"}, ""},
      {{"src/nn/models/a.cpp", "#include \"backend/cuda/b.h\"\n"},
       "backend/cuda is not left of nn"},
      {{"src/nn/models/a.cpp", "#include \"hwy/highway.h\"\n"}, "only backend/cpu"},
      {{"src/train/a.cpp", "#include \"cli/b.h\"\n"}, "cli is not left of train"},
      {{"src/cli/main.cpp", "#include \"train/b.h\"\n#include <CLI/CLI.hpp>\n"}, ""},
      {{"src/other/a.cpp", "#include <vector>\n"}, "belongs to no layer"},
      {{"include/coda/dtype.h", "#include <vector>\n#include <cstdint>\n"}, ""},
      {{"include/coda/dtype.h", "#include <fmt/format.h>\n"}, "standard library and coda/ only"},
      {{"include/coda/dtype.h", "#include \"base/check.h\"\n"}, "standard library and coda/ only"},
      {{"include/coda/dtype.h", "#include \"coda/graph.h\"\n"}, "graph is not left of base"},
      {{"include/coda/unheard_of.h", "#include <vector>\n"}, "belongs to no layer"},
  };
  for (const Planted& planted : cases) {
    const std::vector<File> files = {
        planted.file, {"src/base/dtype.cpp", ""}, {"src/graph/graph.cpp", ""}};
    const std::string complaints = joined(violations(files));
    SCOPED_TRACE(planted.file.path + ": " + planted.file.text);
    if (planted.complaint.empty()) {
      EXPECT_EQ(complaints, "");
    } else {
      EXPECT_NE(complaints.find(planted.complaint), std::string::npos) << complaints;
    }
  }
}

}  // namespace
