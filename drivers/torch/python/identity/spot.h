// The instructions that frames are at, as parts of paths.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "python/identity/path.h"

namespace amanda::python {

/// Some code that belongs to a Python module. Does not keep the code alive, but watches it.
class SpotCode {
 public:
  /// `python_module`: its name, or None. With the interpreter lock, like all functions here.
  SpotCode(PyCodeObject* code, const pybind11::object& python_module);

  bool is_checkpoint() const { return is_checkpoint_; }
  bool is_machinery() const { return is_machinery_; }
  bool lends() const { return lends_; }          // it calls a module with other tensors than its own
  bool is_torchs() const { return is_torchs_; }  // torch's or Amanda's
  bool is_graphs() const { return is_graphs_; }  // generated from a torch.fx graph
  pybind11::handle filename() const { return filename_; }
  /// Module, file and function, as Python shows the beginning of a tuple. Files are numbered in the order in which this
  /// is called.
  const std::string& text();

 private:
  pybind11::object module_, filename_, function_;
  bool is_checkpoint_, is_machinery_, lends_, is_torchs_, is_graphs_;
  std::string text_;
};

/// An instruction of some code that a frame is at.
class Spot {
 public:
  /// `graph_module`: the torch.fx.GraphModule whose graph the code is generated from; null or None if it is another's.
  Spot(std::shared_ptr<SpotCode> in, PyCodeObject* code, int offset, const pybind11::object& graph_module);

  bool lends() const { return code_->lends(); }
  /// The spot as a part of a path, without a module that it runs; it must not outlive the spot. The text is empty until
  /// make_text().
  PathStep part() const;
  /// Runs Python code, the first time.
  void make_text();

 private:
  std::shared_ptr<SpotCode> code_;
  std::string position_, text_, source_, traced_;
  bool runs_region_ = false;
};

}  // namespace amanda::python
