// A tap that a driver in Python runs.
#pragma once

#include <vector>

#include "amanda/driver/graph.h"
#include "graph_call.h"
#include "graph_site.h"

namespace amanda::python {

/// The execution of a tap: lists of Python objects in, lists out.
class TapCall final : public GraphCall {
 public:
  TapCall(const Tap& tap, PyOpSite& site, const py::sequence& inputs, const py::sequence& outputs, py::object original,
          py::object check);

  Backend& backend() const override { return site_.backend(); }
  OpType type() const override { return site_.type(); }
  Phase phase() const override { return tap_.phase(); }
  OpId id() override { return site_.id(); }
  size_t size(Side side) const override { return operands(side).size(); }
  Value get(Side side, size_t position) override;
  std::string detail(Detail which) override { return site_.detail(which); }
  OpType forward_type() const override { return site_.forward_type(); }
  OpId forward_id() override { return site_.forward_id(); }

  void run(RunHints hints) override;
  void skip(RunHints hints) override;
  void set(Side side, size_t position, Value value) override;
  void commit() override;
  void discard() noexcept override;

  PyObject* to_python(Side side, size_t position) override { return Py_NewRef(object_at(side, position)); }
  void from_python(Side side, size_t position, PyObject* object, const std::function<void(Value)>& put) override;
  bool is_list(Side side, size_t position) override { return PyList_Check(object_at(side, position)); }
  bool is_operand(size_t position, PyObject* object) override { return object_at(Side::kInputs, position) == object; }
  bool is_result(size_t position, PyObject* object) override { return object_at(Side::kOutputs, position) == object; }
  PyObject* call_original(PyObject* args) override;
  std::string refusal(const ActionInfo& action, size_t position) const override {
    return site_.refusal(action, position);
  }

  /// The operands after the tap.
  py::list result() const;

 private:
  struct Held {
    Side side;
    size_t position;
    py::object value;
  };
  const std::vector<py::object>& operands(Side side) const { return side == Side::kOutputs ? outputs_ : inputs_; }
  PyObject* object_at(Side side, size_t position) const {
    return position < size(side) ? operands(side)[position].ptr() : Py_None;
  }
  std::vector<py::object>& operands(Side side) { return side == Side::kOutputs ? outputs_ : inputs_; }

  const Tap& tap_;
  PyOpSite& site_;
  std::vector<py::object> inputs_, outputs_;
  const py::object original_, check_;
  std::vector<Held> held_;
};

}  // namespace amanda::python
