#include "python/identity/place_rules.h"

#include <stdexcept>

namespace amanda::python {
namespace {

const PlaceRules* installed = nullptr;

}  // namespace

PlaceRules::PlaceRules(const pybind11::object& fields)
    : module_class(fields.attr("module_class")),
      parameter_class(fields.attr("parameter_class")),
      name_class(fields.attr("name_class")),
      step_class(fields.attr("step_class")),
      buffers_class(fields.attr("buffers_class")),
      home_class(fields.attr("home_class")),
      names(fields.attr("names")),
      registered(fields.attr("registered")),
      homes(fields.attr("homes")),
      blocks(fields.attr("blocks")),
      run_module(fields.attr("run_module")),
      functional_call(fields.attr("functional_call")),
      compiler(fields.attr("compiler")),
      torch_folder(fields.attr("torch_folder").cast<std::string>()),
      checkpoint_file(fields.attr("checkpoint_file").cast<std::string>()),
      acquire(fields.attr("lock").attr("acquire")),
      release(fields.attr("lock").attr("release")),
      tell_deaths(fields.attr("tell_deaths")),
      name_running(fields.attr("name_running")),
      resumed_steps(fields.attr("resumed_steps")),
      mark_of(fields.attr("mark_of")),
      mark_of_function(fields.attr("mark_of_function")),
      entered(fields.attr("entered")),
      is_resumed(fields.attr("is_resumed")),
      search(fields.attr("search")),
      watch_exchanges(fields.attr("watch_exchanges")),
      settle_buffers(fields.attr("settle_buffers")),
      shape_of(fields.attr("shape_of")),
      hash(fields.attr("hash")),
      is_machinery(fields.attr("is_machinery")),
      file_of(fields.attr("file_of")),
      position_of(fields.attr("position_of")),
      line_of(fields.attr("line_of")),
      name_of_module(fields.attr("name_of_module")) {}

void install_rules(const pybind11::object& fields) { installed = new PlaceRules(fields); }

const PlaceRules& rules() {
  if (!installed) throw std::logic_error("[identity] places are named before the rules for it are installed");
  return *installed;
}

}  // namespace amanda::python
