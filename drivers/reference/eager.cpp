// Eager mode: a program calls an operator.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

#include "amanda/driver/engine.h"
#include "amanda/reference/call.h"
#include "operator_call.h"
#include "place_hash.h"
#include "thread_state.h"

namespace amanda::reference {

Operands call(std::string_view name, Operands inputs) {
  const Operator& op = find_operator(name);
  if (inputs.size() != op.info.inputs.size()) {
    throw std::invalid_argument(
        fmt::format("[reference] {} takes {} inputs, not {}", name, op.info.inputs.size(), inputs.size()));
  }
  ScopeStack* scopes = this_thread.observing();
  std::string path = scopes ? fmt::format("{}", fmt::join(this_thread.labels, ".")) : "";
  OperatorCall call(Driver::eager(), op, extended(this_thread.place, name), std::move(path), std::move(inputs));
  if (scopes) {
    Engine::on_op(*scopes, call);
  } else {
    call.run({.observe_inner = true});
  }
  return std::move(call.results());
}

void set_kernel_listener(std::function<void(const OpInfo&)> listener) { this_thread.listener = std::move(listener); }

}  // namespace amanda::reference
