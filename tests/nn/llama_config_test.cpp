#include "nn/models/llama_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "coda/error.h"

namespace coda {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json small() {
  return {{"model_type", "llama"},    {"hidden_size", 64},        {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"intermediate_size", 176}, {"vocab_size", 260}};
}

/// The message when `key` has this value in the small model; "" if it is taken.
std::string complaint(const std::string& key, const json& value) {
  json config = small();
  config[key] = value;
  try {
    parse_llama_config(config.dump(), "config.json");
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(LlamaConfig, ReferenceModelIsReadInFull) {
  std::ifstream file(std::string(CODA_SOURCE_DIR) + "/tests/golden/llama-gqa/config.json");
  std::stringstream text;
  text << file.rdbuf();
  const LlamaConfig c = parse_llama_config(text.str(), "config.json");
  EXPECT_EQ(c.hidden_size, 64);
  EXPECT_EQ(c.num_key_value_heads, 2);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.intermediate_size, 176);
  EXPECT_EQ(c.vocab_size, 260);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_FALSE(c.rope_scaling.has_value());
  EXPECT_EQ(c.bos_token_id, 1);
  EXPECT_EQ(c.dtype, DType::f32);
  // embedding and head, 2 layers of q, k, v, o, three of the MLP and two norms, the last norm
  EXPECT_EQ(parameter_count(c),
            2 * 260 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 176 * 64 + 2 * 64) + 64);
}

TEST(LlamaConfig, WhatIsWrittenIsReadBack) {
  LlamaConfig c = parse_llama_config(small().dump(), "config.json");
  EXPECT_EQ(c.num_key_value_heads, 4);  // absent: as many as heads
  EXPECT_EQ(c.head_dim, 16);            // absent: derived
  c.tie_word_embeddings = true;
  c.dtype = DType::bf16;
  c.rms_norm_eps = 1e-5;
  c.eos_token_id = 2;
  EXPECT_EQ(parse_llama_config(to_json(c), "config.json"), c);
  c.rope_scaling = Llama3Rope{32.0, 1.0, 4.0, 8192};
  c.rope_theta = 500000.0;
  EXPECT_EQ(parse_llama_config(to_json(c), "config.json"), c);
}

TEST(LlamaConfig, OldAndNewRopeKeysMeanTheSame) {
  const json kind = {{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 8192}};
  json old = small();
  old["rope_theta"] = 500000.0;
  old["rope_scaling"] = kind;
  json fresh = small();
  fresh["rope_parameters"] = kind;
  fresh["rope_parameters"]["rope_theta"] = 500000.0;
  const LlamaConfig c = parse_llama_config(fresh.dump(), "config.json");
  EXPECT_EQ(parse_llama_config(old.dump(), "config.json"), c);
  EXPECT_EQ(c.rope_theta, 500000.0);
  EXPECT_EQ(c.rope_scaling, (Llama3Rope{8.0, 1.0, 4.0, 8192}));
  EXPECT_EQ(complaint("rope_scaling", nullptr), "");
  EXPECT_THAT(complaint("rope_scaling", {{"type", "yarn"}, {"factor", 2.0}}),
              AllOf(HasSubstr("rope_scaling: rope_type"), HasSubstr("got \"yarn\"")));
  EXPECT_THAT(complaint("rope_parameters", {{"rope_type", "llama3"}}), HasSubstr("factor"));
  EXPECT_THAT(complaint("rope_parameters", 3), HasSubstr("expected an object, got 3"));
}

TEST(LlamaConfig, RopeScalingHoldsBesideRopeParametersAsInTransformers) {
  const json kind = {{"rope_type", "llama3"},
                     {"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0}};
  json both = small();
  both["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7.0}};
  both["rope_scaling"] = kind;
  both["max_position_embeddings"] = 4096;
  const auto parse = [](const json& config) {
    return parse_llama_config(config.dump(), "config.json");
  };
  const LlamaConfig c = parse(both);
  // The other object's theta does not count either; the original length is by default the longest.
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.rope_scaling, (Llama3Rope{8.0, 1.0, 4.0, 4096}));
  both["rope_theta"] = 3e5;
  EXPECT_EQ(parse(both).rope_theta, 3e5);
  both["rope_scaling"]["rope_theta"] = 9.0;
  EXPECT_EQ(parse(both).rope_theta, 9.0);
  for (const json& absent : {json(nullptr), json::object()}) {
    both["rope_scaling"] = absent;
    EXPECT_EQ(parse(both).rope_theta, 7.0);
    EXPECT_FALSE(parse(both).rope_scaling.has_value());
  }
  EXPECT_THAT(complaint("rope_scaling", 3), HasSubstr("rope_scaling: expected an object, got 3"));
  EXPECT_THAT(complaint("partial_rotary_factor", 0.5), HasSubstr("expected 1"));
}

TEST(LlamaConfig, MistralHasAWindowAndOtherDefaults) {
  json config = small();
  config["model_type"] = "mistral";
  config["num_attention_heads"] = 16;
  config["architectures"] = json::array({"MistralForCausalLM"});
  const auto parse = [&] { return parse_llama_config(config.dump(), "config.json"); };
  LlamaConfig c = parse();
  EXPECT_EQ(c.sliding_window, 4096);
  EXPECT_EQ(c.num_key_value_heads, 8);
  EXPECT_EQ(c.max_position_embeddings, 131072);
  EXPECT_EQ(parse_llama_config(to_json(c), "config.json"), c);
  EXPECT_THAT(to_json(c), AllOf(HasSubstr("\"mistral\""), HasSubstr("\"MistralForCausalLM\"")));
  config["sliding_window"] = 9;
  config["num_key_value_heads"] = 2;
  c = parse();
  EXPECT_EQ(c.sliding_window, 9);
  EXPECT_EQ(c.num_key_value_heads, 2);
  config["sliding_window"] = nullptr;
  c = parse();
  EXPECT_EQ(c.sliding_window, 0);
  EXPECT_THAT(to_json(c), HasSubstr("\"llama\""));  // the same model
  config["sliding_window"] = 0;
  EXPECT_THROW(parse(), UsageError);
  config["architectures"] = json::array({"LlamaForCausalLM"});
  EXPECT_THROW(parse(), UsageError);
  EXPECT_EQ(complaint("sliding_window", 9), "");  // LLaMA has none, whatever the file says
  config = small();
  config["sliding_window"] = 9;
  EXPECT_EQ(parse().sliding_window, 0);
}

TEST(LlamaConfig, WhatCodaDoesNotComputeIsRefused) {
  EXPECT_THAT(complaint("attention_bias", true), HasSubstr("attention_bias: expected false"));
  EXPECT_THAT(complaint("mlp_bias", true), HasSubstr("mlp_bias: expected false"));
  EXPECT_THAT(complaint("hidden_act", "gelu"), HasSubstr("expected \"silu\", got \"gelu\""));
  EXPECT_THAT(complaint("model_type", "gpt2"), HasSubstr("model_type"));
  EXPECT_THAT(complaint("model_type", nullptr),
              HasSubstr("model_type: expected \"llama\" or \"mistral\", got nothing"));
  EXPECT_THAT(complaint("architectures", json::array({"MistralForCausalLM"})),
              HasSubstr("architectures"));
  EXPECT_EQ(complaint("architectures", json::array({"LlamaForCausalLM"})), "");
  EXPECT_THAT(complaint("quantization_config", json{{"quant_method", "gptq"}}),
              HasSubstr("quantization_config: expected none"));
  EXPECT_THAT(complaint("dtype", "float8"), HasSubstr("dtype"));
}

TEST(LlamaConfig, EveryWrongSizeIsNamed) {
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "intermediate_size", "vocab_size", "max_position_embeddings"}) {
    for (const json& wrong : {json(0), json(-4), json(1.5), json("64"), json(true),
                              json(std::uint64_t{1} << 63), json(json::array({4})), json(1e30)}) {
      EXPECT_THAT(complaint(key, wrong), HasSubstr(std::string("config.json: ") + key))
          << key << " " << wrong;
    }
  }
  for (const char* key : {"rms_norm_eps", "rope_theta"}) {
    for (const json& wrong : {json(0), json(-1e-5), json("x")}) {
      EXPECT_THAT(complaint(key, wrong), HasSubstr(key)) << wrong;
    }
  }
  EXPECT_THAT(complaint("bos_token_id", 260), HasSubstr("below vocab_size = 260, got 260"));
  EXPECT_EQ(complaint("eos_token_id", json::array({2, 7})), "");
}

TEST(LlamaConfig, SizesThatDoNotFitTogetherSayWhatWould) {
  json config = small();
  config["hidden_size"] = 1000;
  config["num_attention_heads"] = 12;
  config.erase("head_dim");
  try {
    parse_llama_config(config.dump(), "config.json");
    ADD_FAILURE() << "nothing thrown";
  } catch (const UsageError& e) {
    EXPECT_STREQ(e.what(),
                 "config.json: num_attention_heads: expected a divisor of hidden_size = 1000 (no "
                 "head_dim given), got 12. Give head_dim, or use 10 heads.");
  }
  EXPECT_THAT(complaint("num_key_value_heads", 3), HasSubstr("Use 2 key-value heads"));
  EXPECT_THAT(complaint("head_dim", 15), HasSubstr("even"));
  EXPECT_EQ(complaint("head_dim", 8), "");  // need not be hidden_size / heads
  EXPECT_EQ(complaint("vocab_size", 2147483647), "");
  EXPECT_THAT(complaint("hidden_size", 1 << 30), HasSubstr("2^40 weights"));
}

TEST(LlamaConfig, TextThatIsNoObjectIsRefused) {
  for (const char* text : {"", "{", "[]", "3", "{\"hidden_size\": 1e999}", "\xff"}) {
    EXPECT_THROW(parse_llama_config(text, "config.json"), UsageError) << text;
  }
  EXPECT_THROW(parse_llama_config("{\"a\":" + std::string(100000, '['), "c"), UsageError);
}

}  // namespace
}  // namespace coda
