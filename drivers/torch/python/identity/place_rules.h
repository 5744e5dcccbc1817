// The Python objects with which places are named.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace amanda::python {

/// A PlaceRules of amanda/drivers/torch/identity/place_rules.py, which describes the fields.
struct PlaceRules {
  explicit PlaceRules(const pybind11::object& fields);

  // Classes. Those of names, steps, buffers and homes are NamedTuples.
  pybind11::object module_class, parameter_class, name_class, step_class, buffers_class, home_class;
  // Tables that Python shares.
  pybind11::dict names, registered, homes;
  pybind11::object blocks;
  // Code.
  pybind11::object run_module, functional_call, compiler;
  std::string torch_folder, checkpoint_file;
  // The lock of naming.
  pybind11::object acquire, release;
  // Functions.
  pybind11::object tell_deaths, name_running, resumed_steps, mark_of, mark_of_function, entered, is_resumed;
  pybind11::object search, watch_exchanges, settle_buffers, shape_of;
  pybind11::object hash, is_machinery, file_of, position_of, line_of, name_of_module;
};

/// For the life of the process. With the interpreter lock.
void install_rules(const pybind11::object& fields);
/// Throws if none were installed.
const PlaceRules& rules();

}  // namespace amanda::python
