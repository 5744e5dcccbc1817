#include "operator_call.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "amanda/error.h"
#include "amanda/reference/call.h"
#include "place_hash.h"
#include "thread_state.h"

namespace amanda::reference {
namespace {

/// Around a kernel: the operators that it calls have a place of their own, and are hidden if no tool could see them.
class InsideOperator {
 public:
  InsideOperator(OpId id, bool observe_inner)
      : place_(std::exchange(this_thread.place, id)), hidden_(this_thread.inside_hidden) {
    if (!observe_inner) this_thread.inside_hidden = true;
  }
  ~InsideOperator() {
    this_thread.place = place_;
    this_thread.inside_hidden = hidden_;
  }

 private:
  OpId place_;
  bool hidden_;
};

// Gradients flow to it as to the array itself.
Array own_copy(const Array& array) { return array.copy().with_gradient_of(array); }

}  // namespace

OperatorCall::OperatorCall(Driver& driver, const Operator& op, OpId id, std::string path, Operands inputs,
                           Operands results)
    : driver_(driver),
      op_(op),
      id_(id),
      path_(std::move(path)),
      given_(inputs),
      inputs_(std::move(inputs)),
      results_(std::move(results)) {}

size_t OperatorCall::size(Side side) const { return side == Side::kOutputs ? op_.info.outputs.size() : inputs_.size(); }

Value OperatorCall::get(Side side, size_t position) {
  if (side == Side::kOutputs) return value(results_.at(position));
  return value(show_given_ ? given_.at(position) : inputs_.at(position));
}

std::string OperatorCall::detail(Detail which) { return which == Detail::kModulePath ? path_ : ""; }

void OperatorCall::run(RunHints hints) {
  show_given_ = hints.keep_inputs;  // for an analysis: the program's values, not the tools' edits
  check_target();
  if (op_.in_place && hints.edit_result != Edit::kNo) inputs_[0] = own_copy(std::get<Array>(inputs_[0]));  // finish()
  InsideOperator inside(id_, hints.observe_inner);
  if (this_thread.listener) this_thread.listener(op_.info);
  results_ = op_.kernel(inputs_);
  record(op_, inputs_, results_);
  if (op_.in_place && std::get<Array>(results_[0]).shares_data(std::get<Array>(given_[0]))) finish();
}

void OperatorCall::check_target() const {
  if (op_.in_place && this_thread.recording() && std::get<Array>(given_[0]).gradient_state()->is_leaf) {
    throw std::invalid_argument(
        fmt::format("[tape] {} would change a leaf that requires a gradient in place", op_.info.name));
  }
}

void OperatorCall::skip(RunHints hints) {
  check_target();
  show_given_ = hints.keep_inputs;
  std::vector<bool> is_set(size(Side::kOutputs), false);
  for (const Held& held : held_) {
    if (held.side == Side::kOutputs) is_set[held.position] = true;
  }
  for (size_t i = 0; i < is_set.size(); ++i) {
    if (!is_set[i]) throw Error(fmt::format("result {} ({}) was not set", i, op_.info.outputs[i]));
  }
  results_.assign(is_set.size(), Operand{});  // commit() fills them in
}

// The caller of an in-place operator continues with the array it passed, not with the returned one.
void OperatorCall::finish() {
  if (!op_.in_place) return;
  Array target = std::get<Array>(given_[0]);
  const Array& result = std::get<Array>(results_[0]);
  if (!result.shares_data(target)) target.assign(result.data());
  take_gradient(target, result);
  results_[0] = target;
}

void OperatorCall::set(Side side, size_t position, Value value) {
  if (position >= size(side)) throw Error(fmt::format("there are only {}", size(side)));
  const Operand array = Array();  // all results are arrays
  const Operand& needed = side == Side::kOutputs ? array : inputs_[position];
  if (!value.ref) throw Error(fmt::format("nothing where {} is needed", kind(needed)));
  Held held{side, position, operand(value)};
  if (held.value.index() != needed.index()) {
    throw Error(fmt::format("{} where {} is needed", kind(held.value), kind(needed)));
  }
  if (is_target(held)) {
    const Shape& shape = std::get<Array>(held.value).shape();
    const Shape& fixed = std::get<Array>(given_[0]).shape();
    if (shape != fixed) {
      throw Error(fmt::format("shape {} where an in-place operator keeps {}", to_string(shape), to_string(fixed)));
    }
  }
  // The value of an isolated routine has no gradient of its own: it takes over that of the value it replaces.
  if (routine_mode() == RoutineMode::kIsolated) {
    held.value = straight_through(held.value, (side == Side::kOutputs ? results_ : inputs_)[position]);
  }
  held_.push_back(std::move(held));
}

void OperatorCall::commit() {
  for (Held& held : held_) {
    // The operator will write into its target, which must not be an array that a tool may keep.
    if (held.side == Side::kInputs && is_target(held)) held.value = own_copy(std::get<Array>(held.value));
    (held.side == Side::kOutputs ? results_ : inputs_)[held.position] = std::move(held.value);
  }
  held_.clear();
}

bool OperatorCall::bind_backward(ScopeStack& /*scopes*/, const SubscriptionPtr& seen_by) {
  auto weak = [](const Operands& operands) {
    std::vector<std::optional<Array::Weak>> weak;
    for (const Operand& operand : operands) {
      const auto* array = std::get_if<Array>(&operand);
      weak.push_back(array ? std::optional<Array::Weak>(*array) : std::nullopt);
    }
    return weak;
  };
  watch_->bind({seen_by, op_.type, id_, path_, weak(given_), weak(results_)});
  watch_.reset();
  return true;
}

uint64_t OperatorCall::versions(Side side) const {
  return reference::versions(side == Side::kOutputs ? results_ : inputs_);
}

}  // namespace amanda::reference
