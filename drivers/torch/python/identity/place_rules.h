// The Python objects with which places are named.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace amanda::python {

/// A PlaceRules of amanda/drivers/torch/identity/place_rules.py, which describes the fields.
struct PlaceRules {
  explicit PlaceRules(const pybind11::object& rules) : fields(rules) {}

  pybind11::object fields;  // of all that follows
  // Classes. Those of names, steps, buffers and homes are NamedTuples.
  pybind11::object module_class = fields.attr("module_class");
  pybind11::object parameter_class = fields.attr("parameter_class");
  pybind11::object name_class = fields.attr("name_class");
  pybind11::object step_class = fields.attr("step_class");
  pybind11::object buffers_class = fields.attr("buffers_class");
  pybind11::object home_class = fields.attr("home_class");
  // Tables that Python shares.
  pybind11::dict names = fields.attr("names");
  pybind11::dict registered = fields.attr("registered");
  pybind11::dict homes = fields.attr("homes");
  pybind11::object blocks = fields.attr("blocks");
  // Code.
  pybind11::object run_module = fields.attr("run_module");
  pybind11::object functional_call = fields.attr("functional_call");
  pybind11::object compiler = fields.attr("compiler");
  std::string torch_folder = fields.attr("torch_folder").cast<std::string>();
  std::string checkpoint_file = fields.attr("checkpoint_file").cast<std::string>();
  std::string graph_file = fields.attr("graph_file").cast<std::string>();
  // The lock of naming.
  pybind11::object acquire = fields.attr("lock").attr("acquire"), release = fields.attr("lock").attr("release");
  // Functions.
  pybind11::object tell_deaths = fields.attr("tell_deaths");
  pybind11::object name_running = fields.attr("name_running");
  pybind11::object resumed_steps = fields.attr("resumed_steps");
  pybind11::object mark_of = fields.attr("mark_of");
  pybind11::object mark_of_function = fields.attr("mark_of_function");
  pybind11::object entered = fields.attr("entered");
  pybind11::object is_resumed = fields.attr("is_resumed");
  pybind11::object search = fields.attr("search");
  pybind11::object watch_exchanges = fields.attr("watch_exchanges");
  pybind11::object settle_buffers = fields.attr("settle_buffers");
  pybind11::object shape_of = fields.attr("shape_of");
  pybind11::object hash = fields.attr("hash");
  pybind11::object is_machinery = fields.attr("is_machinery");
  pybind11::object traced_place = fields.attr("traced_place");
  pybind11::object file_of = fields.attr("file_of");
  pybind11::object position_of = fields.attr("position_of");
  pybind11::object line_of = fields.attr("line_of");
  pybind11::object name_of_module = fields.attr("name_of_module");
};

/// For the life of the process. With the interpreter lock.
void install_rules(const pybind11::object& fields);
/// Throws if none were installed.
const PlaceRules& rules();

}  // namespace amanda::python
