// A graph driver that is written in Python: its backend. Operands are Python objects of the driver's choice.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "amanda/base/mutex.h"
#include "amanda/driver/graph.h"
#include "module.h"
#include "native_operand.h"

namespace amanda {
class Tool;
}

namespace amanda::python {

/// Created once per framework, and never destroyed: the core keeps a reference.
class PyGraphBackend final : public Backend {
 public:
  /// Attaches itself. `same_ids_as`: the name space of an attached backend whose operator ids it uses, or "" if it has
  /// its own ids. Throws `Error` if there is no such backend.
  static PyGraphBackend& make(std::string name_space, Capabilities capabilities, const std::string& same_ids_as,
                              PythonBridge& bridge);

  /// The number of an operator type, the same each time for the same `ns`, `name` and `overload`.
  OpType intern(OpInfo info);
  /// `callback` is called with the interpreter lock on the thread whose scopes have changed. None if nothing is to be
  /// called.
  void set_on_switch(const py::object& callback);
  /// `name(symbol)` returns the name of the parameter that the symbol stands for, or None. If `name` is None, no symbol
  /// has a name.
  void set_name_parameters(const py::object& name);
  /// See object_info.h. If `describe` is None, tensors are not described.
  void set_describe(const py::object& describe);
  /// The tools in force on this thread. Null if there are none, or if a routine runs.
  ToolsetPtr toolset() const;
  /// True if scopes are open on this thread, and not switched off; also while a routine runs.
  bool has_scopes() const;
  /// True if a tool in force on this thread asks for this operator type.
  bool wants(OpType type) const;
  /// True if one of these tools, in force on this thread, asks for this operator type, or for its backward operators.
  bool is_asked_for(OpType type, bool is_backward, const std::vector<const Tool*>& tools) const;

  std::string_view name_space() const override { return name_space_; }
  Capabilities capabilities() const override { return capabilities_; }
  const OpInfo& info(OpType type) const override;
  void switch_to(ScopeStack* scopes) override;
  void await_call(uint64_t entry, bool elsewhere) override;
  AwaitedCall end_await_call(uint64_t entry) override;
  void* begin_routines(RoutineMode mode) override;
  void end_routines(void* token) noexcept override;
  std::string refusal(OpSite& site, const ActionInfo& action, size_t position) const override;
  ValueInfo describe(Value value) const override;
  std::string parameter_name(Value tensor) const override;
  std::vector<std::string> parameter_names(Value list) const override;

 private:
  PyGraphBackend(std::string name_space, Capabilities capabilities);
  std::string name_of(py::handle symbol) const;
  /// This thread's scopes. Null if none is in force.
  ScopeStack* scopes() const;

  const std::string name_space_;
  const Capabilities capabilities_;
  mutable Mutex mutex_;
  std::deque<OpInfo> infos_;  // an element stays where it is
  PyRef on_switch_, describe_, name_parameters_;
};

/// An operator that decides itself which actions it refuses.
class RefusingSite : public OpSite {
 public:
  virtual std::string refusal(const ActionInfo& action, size_t position) const = 0;

 protected:
  ~RefusingSite() = default;
};

/// A Python object as an operand; borrowed. None is no operand.
inline PyObject* object_of(Value value) { return ObjectOperand::of(value); }
inline Value value_of(PyObject* object) { return object == Py_None ? Value{} : ObjectOperand::value(object); }

}  // namespace amanda::python
