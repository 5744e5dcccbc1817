#include "tap_call.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

#include "amanda/driver/engine.h"
#include "graph_handles.h"
#include "graph_operator.h"

namespace amanda::python {
namespace {

std::vector<py::object> objects(const py::sequence& sequence) {
  std::vector<py::object> all;
  for (py::handle object : sequence) all.push_back(py::reinterpret_borrow<py::object>(object));
  return all;
}

py::tuple as_tuple(const std::vector<py::object>& objects) {
  py::tuple tuple(objects.size());
  for (size_t i = 0; i < objects.size(); ++i) tuple[i] = objects[i];
  return tuple;
}

}  // namespace

TapCall::TapCall(const Tap& tap, PyOpSite& site, const py::sequence& inputs, const py::sequence& outputs,
                 py::object original, py::object check)
    : tap_(tap),
      site_(site),
      inputs_(objects(inputs)),
      outputs_(objects(outputs)),
      original_(std::move(original)),
      check_(std::move(check)) {
  if (tap.point() == Point::kReplace) outputs_.assign(site.size(Side::kOutputs), py::none());
}

Value TapCall::get(Side side, size_t position) {
  if (position >= size(side)) return {};
  PyObject* operand = operands(side)[position].ptr();
  return value_of(operand);
}

void TapCall::run(RunHints) {
  if (tap_.point() != Point::kReplace) return;
  py::gil_scoped_acquire gil;
  if (original_.is_none()) {
    throw Error(fmt::format("[graph] the driver '{}' ran a replacement without the original of {}; pass original=",
                            backend().name_space(), backend().info(type()).name));
  }
  const py::object result = original_(*as_tuple(inputs_));
  if (size(Side::kOutputs) == 1 && !PyTuple_Check(result.ptr())) {
    outputs_[0] = result;
    return;
  }
  const auto given = objects(py::sequence(result));
  if (given.size() != size(Side::kOutputs)) {
    throw Error(fmt::format("[graph] the driver '{}' returned {} results of {}, which has {}", backend().name_space(),
                            given.size(), backend().info(type()).name, size(Side::kOutputs)));
  }
  outputs_ = given;
}

void TapCall::skip(RunHints) {
  std::vector<bool> is_set(size(Side::kOutputs), false);
  for (const Held& held : held_) {
    if (held.side == Side::kOutputs) is_set[held.position] = true;
  }
  for (size_t i = 0; i < is_set.size(); ++i) {
    if (!is_set[i]) throw Error(fmt::format("result {} was not set", i));
  }
}

void TapCall::set(Side side, size_t position, Value value) {
  if (position >= size(side)) throw Error(fmt::format("there are only {}", size(side)));
  py::gil_scoped_acquire gil;  // a C++ routine may replace one operand by another
  py::object operand = value.ref ? py::reinterpret_borrow<py::object>(object_of(value)) : py::none();
  if (!check_.is_none()) {
    const py::object reason = check_(position, operand);
    if (!reason.is_none()) throw Error(reason.cast<std::string>());
  }
  held_.push_back({side, position, std::move(operand)});
}

void TapCall::commit() {
  if (held_.empty()) return;
  py::gil_scoped_acquire gil;
  for (Held& held : held_) operands(held.side)[held.position] = std::move(held.value);
  held_.clear();
}

void TapCall::discard() noexcept {
  if (held_.empty()) return;
  py::gil_scoped_acquire gil;
  held_.clear();
}

py::list TapCall::result() const {
  py::list result;
  for (const py::object& object : operands(tap_.point() == Point::kBefore ? Side::kInputs : Side::kOutputs)) {
    result.append(object);
  }
  return result;
}

void TapCall::from_python(Side, size_t, PyObject* object, const std::function<void(Value)>& put) {
  put(value_of(object));
}

PyObject* TapCall::call_original(PyObject* args) {
  TapCall call(tap_, site_, py::reinterpret_borrow<py::sequence>(args), py::tuple(), original_, check_);
  Engine::call_original(call);
  if (call.size(Side::kOutputs) == 1) return call.outputs_[0].release().ptr();
  return as_tuple(call.outputs_).release().ptr();
}

void bind_tap(py::module_& m) {
  py::class_<RunState, std::shared_ptr<RunState>>(m, "RunState",
                                                  "What routines share in one execution of an operator. That of a "
                                                  "backward operator is created with `forward`, the one "
                                                  "of the execution that it belongs to, where that is known.")
      .def(py::init<RunStatePtr>(), py::arg("forward") = RunStatePtr());
  py::class_<TapHandle>(m, "Tap", "Consecutive actions of one operator: one node of the instrumented graph.")
      .def_property_readonly(
          "id", [](const TapHandle& h) { return h.tap->id(); }, "A number, never used again; see find_tap().")
      .def_property_readonly(
          "is_backward", [](const TapHandle& h) { return h.tap->phase() == Phase::kBackward; },
          "Is it a tap of a backward operator?")
      .def_property_readonly(
          "point", [](const TapHandle& h) { return name_of(h.tap->point()); },
          "\"before\", \"replace\" or \"after\": where it runs.")
      .def_property_readonly(
          "kind",
          [](const TapHandle& h) {
            static constexpr const char* kNames[] = {"unknown", "observe", "transform", "traceable"};
            return kNames[static_cast<size_t>(h.tap->kind())];
          },
          "\"observe\": it replaces no value; \"transform\": it does; \"traceable\": it also works on symbols; "
          "\"unknown\".")
      .def_property_readonly(
          "differentiable", [](const TapHandle& h) { return h.tap->differentiable(); },
          "Do gradients flow through its routines? If not, they pass it unchanged.")
      .def_property_readonly(
          "shares_run", [](const TapHandle& h) { return h.tap->shares_run(); },
          "Do its routines share values with others of the same execution?")
      .def(
          "selects", [](const TapHandle& h, size_t position) { return h.tap->selects(position); }, py::arg("position"),
          "Does it get this operand (of its own side)?")
      .def(
          "shows_input", [](const TapHandle& h, size_t position) { return h.tap->shows_input(position); },
          py::arg("position"), "After the operator: is it shown this input, too?")
      .def(
          "run",
          [](const TapHandle& h, PyOpSite& site, const py::sequence& inputs, const py::sequence& outputs,
             const py::object& original, RunState* state, const py::object& check) {
            const TapPtr tap = h.tap;
            TapCall call(*tap, site, inputs, outputs, original, check);
            {
              py::gil_scoped_release unlocked;  // C++ routines need no lock, Python routines take it
              Engine::run(*tap, call, nullptr, state);
            }
            return call.result();
          },
          py::arg("site"), py::arg("inputs") = py::tuple(), py::arg("outputs") = py::tuple(), py::kw_only(),
          py::arg("original") = py::none(), py::arg("state") = static_cast<RunState*>(nullptr),
          py::arg("check") = py::none(),
          "Runs the actions on the operands that reach the tap, and returns the operands after it: the inputs before "
          "the operator, otherwise its outputs. Raises what a routine raised. `site`: the operator, as it was shown. "
          "`original(*inputs)`: the operator, for a tap in its place. `check(position, operand)` is called with each "
          "operand that a routine gives, and returns why it does not fit, or None.");
  m.def(
      "find_tap",
      [](uint64_t id) -> std::optional<TapHandle> {
        TapPtr tap = Engine::tap(id);
        if (!tap) return std::nullopt;
        return TapHandle{std::move(tap)};
      },
      py::arg("id"), "The tap with this id; None: nothing holds it any more, or another process created it.");
}

}  // namespace amanda::python
