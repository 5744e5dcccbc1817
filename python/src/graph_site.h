// A graph and its operators, as a driver in Python shows them.
#pragma once

#include <memory>
#include <string>

#include "amanda/driver/graph.h"
#include "graph_backend.h"

namespace amanda::python {

/// One operator of a graph. Filled in by Python and read by the core without the interpreter lock: it is immutable.
class PyOpSite final : public RefusingSite {
 public:
  /// `forward`: a PyOpSite; None for a forward operator.
  PyOpSite(PyGraphBackend& backend, OpType type, OpId id, py::tuple inputs, py::tuple outputs, std::string module_path,
           std::string source, py::object refuse, py::object forward, py::object attribute);

  Backend& backend() const override { return backend_; }
  OpType type() const override { return type_; }
  Phase phase() const override { return forward_ ? Phase::kBackward : Phase::kForward; }
  OpId id() override { return id_; }
  size_t size(Side side) const override { return operands(side) ? PyTuple_GET_SIZE(operands(side)) : 0; }
  Value get(Side side, size_t position) override;
  std::string detail(Detail which) override;
  std::string attribute(std::string_view name) override;
  OpType forward_type() const override { return forward_ ? forward_->type_ : type_; }
  OpId forward_id() override { return forward_ ? forward_->id_ : id_; }
  size_t forward_size(Side side) const override { return forward_ ? forward_->size(side) : size(side); }
  Value forward_get(Side side, size_t position) override {
    return forward_ ? forward_->get(side, position) : get(side, position);
  }
  std::string forward_attribute(std::string_view name) override {
    return forward_ ? forward_->attribute(name) : attribute(name);
  }

  std::string refusal(const ActionInfo& action, size_t position) const override;
  int traverse(visitproc visit, void* arg) const;
  void clear();  // by the garbage collector: the operands are not used again

 private:
  static PyOpSite* forward_of(const py::object& forward);
  PyObject* operands(Side side) const { return (side == Side::kOutputs ? outputs_ : inputs_).get(); }

  PyGraphBackend& backend_;
  const OpType type_;
  const OpId id_;
  PyRef inputs_, outputs_;  // tuples
  const std::string module_path_, source_;
  PyRef refuse_;          // null if nothing is refused
  PyRef attribute_;       // null if it has no attributes
  PyRef forward_object_;  // keeps forward_ alive
  PyOpSite* const forward_;
};

/// Base of the driver's class in Python, which has `each_op(visitor)` and `lower(sites)`.
class PyGraphSite final : public GraphSite {
 public:
  PyGraphSite(PyGraphBackend& backend, py::handle self) : backend_(backend), self_(self) {}

  Backend& backend() const override { return backend_; }
  void each_op(GraphVisitor& visitor) override;
  std::shared_ptr<void> lower(const std::vector<SitePlan>& sites) override;

 private:
  PyGraphBackend& backend_;
  const py::handle self_;  // alive while the graph is instrumented
};

/// An interrupt or exit that Python raised in lower(). Not a std::exception, so that it passes through the core
/// unchanged.
struct PythonInterrupt {
  std::shared_ptr<py::error_already_set> error;
};

}  // namespace amanda::python
