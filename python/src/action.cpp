// Actions and their descriptions.
#include "action.h"

#include <fmt/format.h>
#include <pybind11/stl.h>

namespace amanda::python {
namespace {

bool is_later(const ActionDescription& action) {
  return action.phase == Phase::kBackward && !action.place->backward_op;
}

const char* keyword(const ActionDescription& action) {
  const bool forward = action.phase == Phase::kForward;
  if (side_of(action.point) == Side::kOutputs) return forward ? "outputs" : "grad_inputs";
  return forward ? "inputs" : "grad_outputs";
}

std::string operands_text(const ActionDescription& action) {
  if (!action.operands) return "";
  std::string list;
  for (const auto& operand : *action.operands) {
    if (!list.empty()) list += ", ";
    const auto* name = std::get_if<std::string>(&operand);
    list += name ? fmt::format("'{}'", *name) : std::to_string(std::get<int64_t>(operand));
  }
  return fmt::format(" with {}=[{}]", keyword(action), list);
}

const char* when(const ActionDescription& action) {
  return action.point == Point::kBefore ? "before" : action.point == Point::kAfter ? "after" : "replace";
}

std::string operator_name(const OpInfo& info) {
  return info.ns + "::" + info.name + (info.overload.empty() ? "" : "." + info.overload);
}

std::string operator_text(const ActionDescription& action) {
  const OpPlace& place = *action.place;
  if (is_later(action)) return "each backward operator of " + operator_name(*place.op);
  if (!place.backward_op) return operator_name(*place.op);
  return fmt::format("{} of {}", place.backward_op->name, operator_name(*place.op));
}

std::string whole_text(const ActionDescription& action) {
  const OpPlace& place = *action.place;
  return fmt::format("{}: {} {} {}{}{}{}{}{}{}", action.tool, action.routine, position_text(action.point),
                     operator_text(action), operands_text(action), place.module_path.empty() ? "" : " in ",
                     place.module_path, place.source.empty() ? "" : " at ", place.source,
                     action.removed ? "; removed" : "");
}

}  // namespace

const char* position_text(Point point) {
  return point == Point::kBefore ? "before" : point == Point::kAfter ? "after" : "in place of";
}

std::string short_text(const ActionDescription& action) {
  const char* subject = is_later(action) ? " each backward operator" : action.point == Point::kReplace ? " it" : "";
  return fmt::format("{}: {} {}{}{}", action.tool, action.routine, position_text(action.point), subject,
                     operands_text(action));
}

void bind_action(py::module_& m) {
  py::class_<ActionDescription>(m, "ActionDescription", "What was scheduled, and where; see amanda.Scope.describe.")
      .def_readonly("tool", &ActionDescription::tool, "The tool's name.")
      .def_readonly("routine", &ActionDescription::routine, "The routine's name.")
      .def_property_readonly(
          "phase",
          [](const ActionDescription& action) { return action.phase == Phase::kForward ? "forward" : "backward"; },
          "Backward at a forward operator: it runs at each backward operator of that.")
      .def_property_readonly("when", &when, "Before, after or replace.")
      .def_readonly("operands", &ActionDescription::operands,
                    "What the routine gets, by name or by position; None: all.")
      .def_readonly("removed", &ActionDescription::removed, "Was it removed?")
      .def_property_readonly(
          "operator", [](const ActionDescription& action) { return operator_name(*action.place->op); },
          "The forward operator: aten::add.Tensor.")
      .def_property_readonly(
          "backward_operator",
          [](const ActionDescription& action) -> std::string {
            const OpInfo* info = action.place->backward_op;
            return info ? info->name : "";
          },
          "Its name; empty for a forward operator.")
      .def_property_readonly(
          "op_id", [](const ActionDescription& action) { return action.place->op_id; }, "Of the forward operator.")
      .def_property_readonly(
          "backward_op_id",
          [](const ActionDescription& action) -> std::optional<OpId> {
            if (!action.place->backward_op) return std::nullopt;
            return action.place->backward_op_id;
          },
          "None for a forward operator.")
      .def_property_readonly(
          "module_path", [](const ActionDescription& action) { return action.place->module_path; }, "As of a context.")
      .def_property_readonly(
          "source", [](const ActionDescription& action) { return action.place->source; }, "As of a context.")
      .def("short_text", &short_text, "Without the operator.")
      .def("__repr__", [](const ActionDescription& action) {
        return fmt::format("<amanda.ActionDescription {}>", whole_text(action));
      });

  py::class_<Action>(m, "Action", "A scheduled routine.")
      .def("remove", &Action::remove, "Takes it out, from the operator's next run on; any number of times.")
      .def_property_readonly("removed", &Action::removed, "Was it removed?")
      .def("describe", &Action::describe, "What was scheduled, and where.")
      .def("__repr__",
           [](const Action& action) { return fmt::format("<amanda.Action {}>", whole_text(action.describe())); });
}

}  // namespace amanda::python
