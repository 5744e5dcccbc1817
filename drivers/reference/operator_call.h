// One execution of an operator, eager or at a graph's tap: operands in, results out, edits held until committed.
#pragma once

#include <optional>

#include "amanda/driver/backend.h"
#include "amanda/reference/operator.h"
#include "driver.h"
#include "tape.h"

namespace amanda::reference {

class OperatorCall final : public OpCall {
 public:
  OperatorCall(Driver& driver, const Operator& op, OpId id, std::string path, Operands inputs, Operands results = {});

  // The functions that analyses use.
  Backend& backend() const override { return driver_; }
  OpType type() const override { return op_.type; }
  Phase phase() const override { return Phase::kForward; }
  OpId id() override { return id_; }
  size_t size(Side side) const override;
  Value get(Side side, size_t position) override;
  std::string detail(Detail which) override;

  // The functions of the execution.
  void run(RunHints hints) override;
  void skip(RunHints hints) override;
  bool has_results() const override { return false; }  // the inputs are kept, too
  void show_run_inputs() override { show_given_ = false; }
  void finish() override;
  void set(Side side, size_t position, Value value) override;
  void commit() override;
  void discard() noexcept override { held_.clear(); }
  uint64_t versions(Side side) const override;
  void watch_backward(bool /*keep_operands*/) override { watch_.emplace(); }  // it always keeps them, weakly
  bool bind_backward(ScopeStack& scopes, const SubscriptionPtr& seen_by, RunSource& runs) override;

  const Operands& inputs() const { return inputs_; }
  Operands& results() { return results_; }

 private:
  struct Held {
    Side side;
    size_t position;
    Operand value;
  };
  void check_target() const;  // of an in-place operator: it must not be a leaf
  bool is_target(const Held& held) const { return op_.in_place && held.position == 0; }

  Driver& driver_;
  const Operator& op_;
  OpId id_;
  std::string path_;
  Operands given_;   // the program's operands; the caller of an in-place operator finds the result here
  Operands inputs_;  // the operator's operands
  Operands results_;
  std::optional<Watch> watch_;
  bool show_given_ = false;
  std::vector<Held> held_;
};

}  // namespace amanda::reference
