// One execution of a graph's node, or of a tap beside it.
#pragma once

#include <fmt/format.h>

#include "amanda/error.h"
#include "driver.h"
#include "operator_call.h"
#include "place_hash.h"

namespace amanda::reference {

inline OpId node_place(OpId place, const std::string& name, const Operator& op) {
  return extended(extended(place, name),
                  op.info.overload.empty() ? op.info.name : op.info.name + "." + op.info.overload);
}
inline OpId gradient_place(OpId forward, const Operator& op, size_t size) {
  return extended(forward, fmt::format("{}.0/{}", operator_of(op.gradient_type).info.name, size));
}

/// A backward operator in a graph: gradients of results in, gradients of inputs out.
class GradientNodeCall final : public OpCall {
 public:
  GradientNodeCall(const Operator& op, OpId forward, Gradients grad_outputs, Gradients grad_inputs, Operands inputs,
                   Operands outputs)
      : op_(op),
        forward_(forward),
        in_(std::move(grad_outputs)),
        out_(std::move(grad_inputs)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)) {}

  Backend& backend() const override { return Driver::graph(); }
  OpType type() const override { return op_.gradient_type; }
  Phase phase() const override { return Phase::kBackward; }
  OpId id() override { return gradient_place(forward_, op_, op_.info.inputs.size()); }
  size_t size(Side side) const override {
    return side == Side::kOutputs ? op_.info.inputs.size() : op_.info.outputs.size();
  }
  Value get(Side side, size_t at) override {
    const std::optional<Operand>& shown = (side == Side::kOutputs ? out_ : in_).at(at);
    return shown ? value(*shown) : Value{};
  }
  std::string detail(Detail) override { return ""; }
  OpType forward_type() const override { return op_.type; }
  OpId forward_id() override { return forward_; }
  size_t forward_size(Side side) const override { return (side == Side::kOutputs ? outputs_ : inputs_).size(); }
  Value forward_get(Side side, size_t at) override {
    return value((side == Side::kOutputs ? outputs_ : inputs_).at(at));
  }

  void run(RunHints) override {
    if (std::none_of(in_.begin(), in_.end(), [](const auto& in) { return in.has_value(); })) {
      out_.assign(size(Side::kOutputs), std::nullopt);
    } else {
      out_ = op_.differentiate(inputs_, outputs_)(in_);
    }
  }
  void skip(RunHints) override { out_.assign(size(Side::kOutputs), std::nullopt); }
  bool has_results() const override { return false; }
  void finish() override {}
  void set(Side side, size_t at, Value value) override {
    if (at >= size(side)) throw Error(fmt::format("there are only {}", size(side)));
    if (value.ref && !std::holds_alternative<Array>(operand(value)))
      throw Error(fmt::format("{} where an array is needed", kind(operand(value))));
    held_.push_back({side, at, value.ref ? std::optional(operand(value)) : std::nullopt});
  }
  void commit() override {
    for (Held& held : held_) (held.side == Side::kOutputs ? out_ : in_)[held.at] = std::move(held.value);
    held_.clear();
  }
  void discard() noexcept override { held_.clear(); }
  uint64_t versions(Side side) const override {
    uint64_t sum = 0;
    for (const auto& gradient : side == Side::kOutputs ? out_ : in_) {
      if (gradient) sum += std::get<Array>(*gradient).version();
    }
    return sum;
  }

  Gradients& grad_outputs() { return in_; }
  Gradients& grad_inputs() { return out_; }

 private:
  struct Held {
    Side side;
    size_t at;
    std::optional<Operand> value;
  };
  const Operator& op_;
  OpId forward_;
  Gradients in_, out_;
  Operands inputs_, outputs_;
  std::vector<Held> held_;
};

}  // namespace amanda::reference
