// The steps of a call, as the path that its operator's id is made of.
#pragma once

#include <c10/util/SmallVector.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "python/identity/module_names.h"

namespace amanda::python {

/// The module that an operator of a torch.fx graph was traced in.
struct TracedModule {
  std::string_view name;  // in the running module; empty if it is that one itself
  size_t running = 0;  // the number of that one, innermost first: regions, as those of torch.cond, are further inside
};

/// A step as a part of a path. The texts and the mark must outlive the path.
struct PathStep {
  std::string_view text;     // of its place, or of the name of the module that it runs
  std::string_view source;   // the line; empty if it is in torch or Amanda
  std::string_view traced;   // a TracedModule's name; empty if it is no graph's code
  bool runs_region = false;  // the operator runs another graph of the same trace
  bool is_checkpoint = false, is_machinery = false;
  bool runs = false, has_state = false;  // a module; one with parameters or buffers
  pybind11::handle mark;                 // the place of a roots.Mark, or null
  bool enters = false;                   // an open scope

  void run(const ModuleName& module) {
    runs = true;
    text = module.text();
    has_state = module.has_state();
  }
  bool has_text() const { return runs || !(is_checkpoint || is_machinery); }
};

/// The places of steps, which are added from the innermost outwards, up to their root. See path_of in
/// amanda/drivers/torch/identity/call_path.py, which also names the modules first.
class Path {
 public:
  void add(const PathStep& step);

  /// Appends the places, as Python shows a tuple.
  void append_to(std::string& text) const;
  std::string_view source() const { return source_; }  // the first line outside torch and Amanda
  const TracedModule& traced() const { return traced_; }
  /// True if the root was found without marks and scopes.
  bool has_root() const { return root_ > 0; }
  /// True if steps outside the outermost module do not change the places.
  bool in_model() const { return has_root() && (!is_over_ || inside_ < modules_); }

 private:
  c10::SmallVector<std::string_view, 64> places_;
  std::string mark_;  // its place in the path; empty if it has the place of an ordinary frame
  std::string_view source_;
  TracedModule traced_;
  size_t root_ = 0, marked_ = 0, entered_ = 0;  // the number of places inside
  size_t modules_ = 0, inside_ = 0;             // the number of modules; and of those inside the checkpoint
  bool is_marked_ = false, is_over_ = false;
};

}  // namespace amanda::python
