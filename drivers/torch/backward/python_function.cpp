#include "backward/python_function.h"

#include "amanda/torch.h"
#include "backward/grad_hooks.h"
#include "base/op_types.h"
#include "base/python_hooks.h"
#include "identity/identity.h"
#include "thread/tracing.h"

namespace amanda::pytorch {
namespace {

/// The forward operator, for its backward operators only: tools do not analyze it.
class FunctionSite final : public OpSite {
 public:
  FunctionSite(const OpRecord& record, const Identity& identity) : record_(record), identity_(identity) {}

  Backend& backend() const override { return pytorch::backend(); }
  OpType type() const override { return record_.type; }
  Phase phase() const override { return Phase::kForward; }
  OpId id() override { return identity_.id; }
  size_t size(Side) const override { return 0; }
  Value get(Side, size_t) override { return {}; }
  std::string detail(Detail which) override {
    if (which == Detail::kIsRecompute || !python_hooks.describe) return "";
    return python_hooks.describe(identity_.raw_path, which);
  }

 private:
  const OpRecord& record_;
  const Identity& identity_;
};

struct FunctionRun final : RunSource {
  FunctionRun(ScopeStack& scopes, FunctionSite& site) : scopes(scopes), site(site) {}
  RunStatePtr run_state() override {
    if (!run) run = Backward::new_run(scopes, site);
    return run;
  }

  ScopeStack& scopes;
  FunctionSite& site;
  RunStatePtr run;
};

}  // namespace

void bind_python_function(const std::string& name, const NodeWindow& window, c10::ArrayRef<c10::IValue> inputs,
                          c10::ArrayRef<at::Tensor> outputs) {
  CurrentScopes scopes = observing_scopes();
  scopes.hold();  // releasing tensors may run code that leaves a scope
  const OperandTensors tensors = tensors_of(inputs);
  if (!scopes || is_traced(c10::DispatchKeySet(c10::DispatchKeySet::FULL), tensors) || belongs_to_backward()) return;
  const SomeTensors levels = all_levels(outputs);
  const NodeWindow::Made made = window.made(levels);
  if (made.nodes.empty()) return;
  const OpRecord& record = op_types().python_function(name);
  const Identity identity = identify(record, tensors);
  FunctionSite site(record, identity);
  SubscriptionPtr seen_by = Backward::subscription(*scopes, site);
  if (!seen_by) return;
  auto operands = std::make_shared<ForwardOperands>();
  operands->keep_inputs(inputs);
  operands->keep_outputs(std::vector<c10::IValue>(outputs.begin(), outputs.end()));
  for (const NodeWindow::Leaf& leaf : made.leaves) operands->connect(*leaf.accumulate);
  const auto forward = std::make_shared<ForwardRun>(
      ForwardRun{std::move(seen_by), record.type, identity.id, identity.raw_path, std::move(operands), {}});
  FunctionRun run(*scopes, site);
  bind_nodes(*scopes, made, forward, identity.id, /*made_by_forward=*/true, &run);
}

}  // namespace amanda::pytorch
