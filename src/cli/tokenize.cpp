#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.h"
#include "cli/command.h"
#include "train/file.h"
#include "train/tokenizer.h"

namespace coda {
namespace {

struct TokenizeCommand {
  std::string model, text, file;
  CLI::Option* text_option = nullptr;
  CLI::Option* file_option = nullptr;
  bool begin = false;
  Printer output;

  std::string input() const;
  int run() const;
};

std::string TokenizeCommand::input() const {
  if ((text_option->count() > 0) == (file_option->count() > 0)) {
    throw_error<UsageError>("tokenize: expected --text or --file, got {}.",
                            text_option->count() > 0 ? "both" : "neither");
  }
  return text_option->count() > 0 ? text : read_file(file);
}

int TokenizeCommand::run() const {
  const Tokenizer tokenizer = Tokenizer::load(model);
  std::vector<std::int32_t> ids = tokenizer.encode(input());
  if (begin && tokenizer.bos() >= 0) ids.insert(ids.begin(), tokenizer.bos());
  output.object({{"ids", ids}, {"text", tokenizer.decode(ids)}});
  for (const std::int32_t id : ids) {
    output.result("{:7} {}\n", id,
                  nlohmann::json(tokenizer.decode(std::span(&id, 1)))
                      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  return 0;
}

}  // namespace

Command add_tokenize(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("tokenize", "The token ids of a text");
  auto c = std::make_shared<TokenizeCommand>();
  sub->add_option("--model", c->model, "Folder with tokenizer.model or tokenizer.json")
      ->required()
      ->group("Input");
  c->text_option = sub->add_option("--text", c->text, "The text")->group("Input");
  c->file_option = sub->add_option("--file", c->file, "A file that holds the text")->group("Input");
  sub->add_flag("--begin", c->begin, "With the token that texts begin with, if there is one")
      ->group("Input");
  c->output.add_option(*sub);
  sub->footer("Example:\n  coda tokenize --model run --text \"In the beginning\"");
  return {sub, [c] { return c->run(); }};
}

}  // namespace coda
