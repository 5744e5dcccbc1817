// A tap that a driver in Python runs.
#pragma once

#include <vector>

#include "amanda/graph.h"
#include "graph_site.h"

namespace amanda::python {

/// The execution of a tap: lists of Python objects in, lists out.
class TapCall final : public OpCall {
 public:
  TapCall(const Tap& tap, PyOpSite& site, const py::sequence& inputs, const py::sequence& outputs, py::object original);

  Backend& backend() const override { return site_.backend(); }
  OpType type() const override { return site_.type(); }
  Phase phase() const override { return tap_.phase(); }
  OpId id() override { return site_.id(); }
  size_t size(Side side) const override { return operands(side).size(); }
  Value get(Side side, size_t position) override;
  std::string detail(Detail which) override { return site_.detail(which); }
  OpType forward_type() const override { return site_.forward_type(); }
  OpId forward_id() override { return site_.forward_id(); }
  size_t forward_size(Side) const override { return 0; }  // only at analysis
  Value forward_get(Side, size_t) override { return {}; }

  void run(RunHints hints) override;
  void skip(RunHints hints) override;
  bool has_results() const override { return false; }
  void finish() override {}
  void set(Side side, size_t position, Value value) override;
  void commit() override;
  void discard() noexcept override;
  uint64_t versions(Side) const override { return 0; }  // Python objects: changes in place cannot be detected

  /// The operands after the tap.
  py::list result() const;
  /// Runs the original of the replacement that runs on this thread, on other arguments. Null: a Python error is set.
  static PyObject* call_original(OpType type, OpId id, PyObject* args, PyObject* kwargs);

 private:
  struct Held {
    Side side;
    size_t position;
    py::object value;
  };
  const std::vector<py::object>& operands(Side side) const { return side == Side::kOutputs ? outputs_ : inputs_; }
  std::vector<py::object>& operands(Side side) { return side == Side::kOutputs ? outputs_ : inputs_; }

  const Tap& tap_;
  PyOpSite& site_;
  std::vector<py::object> inputs_, outputs_;
  const py::object original_;
  std::vector<Held> held_;
};

}  // namespace amanda::python
