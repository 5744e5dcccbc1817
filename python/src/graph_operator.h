// Operators of a graph while it runs, as the drivers keep them whose nodes run taps.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "amanda/driver/engine.h"
#include "amanda/error.h"
#include "graph_call.h"

namespace amanda::python {

/// As Python has the points: "before", "replace", "after".
inline const char* name_of(Point point) {
  static constexpr const char* kNames[] = {"before", "replace", "after"};
  return kNames[static_cast<size_t>(point)];
}

/// The attached driver, which knows this type of operator. Throws `Error`; `who`: "tensorflow".
inline Backend* backend_named(const std::string& name, OpType type, const char* who) {
  const Backend* known = Engine::find_backend(name);
  if (!known) throw Error(std::string("[") + who + "] no driver '" + name + "' is attached");
  known->info(type);
  return const_cast<Backend*>(known);
}

/// Immutable, but for `refuse`. Drivers add the data that they need.
struct GraphOperator {
  Backend* backend;
  OpType type;
  OpId id;
  std::string module_path, source;
  std::shared_ptr<const GraphOperator> forward;  // null if it is a forward operator
  /// With the interpreter lock. Borrowed from the Python object, which resets it when it dies. Null if nothing is
  /// refused.
  mutable PyObject* refuse = nullptr;

  Phase phase() const { return forward ? Phase::kBackward : Phase::kForward; }
  const GraphOperator& forward_operator() const { return forward ? *forward : *this; }
};

/// A call for a GraphOperator, which outlives it.
class OperatorCall : public GraphCall {
 public:
  Backend& backend() const final { return *op_.backend; }
  OpType type() const final { return op_.type; }
  Phase phase() const final { return op_.phase(); }
  OpId id() final { return op_.id; }
  OpType forward_type() const final { return op_.forward_operator().type; }
  OpId forward_id() final { return op_.forward_operator().id; }
  std::string detail(Detail which) override {
    if (which == Detail::kIsRecompute) return "";
    return which == Detail::kModulePath ? op_.module_path : op_.source;
  }
  std::string refusal(const ActionInfo& action, size_t position) const final {
    if (!op_.refuse) return "";
    pybind11::gil_scoped_acquire gil;
    const auto refuse = pybind11::reinterpret_borrow<pybind11::object>(op_.refuse);
    if (!refuse) return "";
    const pybind11::object reason = refuse(name_of(action.point), position);
    return reason.is_none() ? "" : reason.cast<std::string>();
  }

 protected:
  explicit OperatorCall(const GraphOperator& op) : op_(op) {}
  ~OperatorCall() = default;

  /// With the interpreter lock: the result, or a tuple of several; a new reference.
  PyObject* results_to_python() {
    const size_t count = size(Side::kOutputs);
    if (count == 1) return to_python(Side::kOutputs, 0);
    pybind11::tuple results(count);
    for (size_t i = 0; i < count; ++i) {
      results[i] = pybind11::reinterpret_steal<pybind11::object>(to_python(Side::kOutputs, i));
    }
    return results.release().ptr();
  }

 private:
  const GraphOperator& op_;
};

}  // namespace amanda::python
