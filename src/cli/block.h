// The blocks that `coda explain`, `check` and `bench` compile, from the same options; and memory
// with reproducible values to run them on.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "backend/backend_tensor.h"
#include "cli/command.h"
#include "nn/models/llama_blocks.h"
#include "plan/compile.h"

namespace coda {

struct BlockOptions {
  std::string block, dtype = "bf16";
  LlamaBlockSizes sizes;
  AttentionOptions attention;  ///< of the block "attention"
  std::int64_t tokens = 16384;
  double held_price = 0.0;
  std::int32_t pieces = 1;

  void add_options(CLI::App& app);
  /// Throws UsageError.
  std::shared_ptr<const Plan> compile_plan(bool fuse) const;
};

/// Everything a plan's session is bound to, for `tokens` rows.
class BlockMemory {
 public:
  /// Inputs get values that depend on their name only: tiles normal, weights normal over the root
  /// of their columns, norms about 1; rounded to the plan's types. Outputs are NaN. widen: as f64.
  BlockMemory(const Plan& plan, std::int64_t tokens, const LlamaBlockSizes& sizes, bool widen);

  /// The session must be of this backend.
  void bind(Session& session, Backend& backend);
  /// After a run: outputs of a backend with memory of its own come to the host. Waits.
  void fetch();
  const std::map<std::string, HostTensor>& inputs() const { return inputs_; }
  const std::map<std::string, HostTensor>& outputs() const { return outputs_; }

 private:
  std::map<std::string, HostTensor> inputs_, outputs_;
  std::map<std::string, BackendTensor> device_;
};

}  // namespace coda
