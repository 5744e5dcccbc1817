// The Python dict that represents an OpContext, and the keys that both languages see.
#pragma once

#include <any>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "context_handle.h"

namespace amanda::python {

class PyContextFace final : public ContextFace {
 public:
  explicit PyContextFace(OpContext& context);
  std::unique_ptr<ContextFace> copy_keys(OpContext& owner) const override;
  bool has_keys() const override { return PyDict_GET_SIZE(object_.get()) > 0; }
  PyObject* object() const { return object_.get(); }
  int traverse(visitproc visit, void* arg) const;

 private:
  friend class ContextFaceSync;
  PyRef object_;                            // an amanda.OpContext
  std::map<std::string, std::any> shared_;  // keys of both sides when they were last synchronized
};

/// Around a Python analysis: copies C++ keys into the dict, and Python's changes back.
class ContextFaceSync {
 public:
  explicit ContextFaceSync(OpContext& context);
  /// After the analysis. Throws what the keys themselves raise when they are compared.
  void bring_back();
  /// The same if the analysis raised: its error is kept.
  void bring_back_after_error();
  PyObject* object() const { return face_.object(); }

 private:
  OpContext& context_;
  PyContextFace& face_;
};

// Values that both languages share: bool, int64, double, string, and vectors of them. A string that is not valid UTF-8,
// or that UTF-8 cannot encode (a lone surrogate, as os.fsdecode returns), stays with its language.
bool equal(const std::any& a, const std::any& b);
py::object to_python(const std::any& value);          // null if its type is not shared
std::any from_python(py::handle object);              // empty if its type is not shared
std::optional<std::string> encoded(py::handle text);  // empty if UTF-8 cannot encode it
py::object decoded(const std::string& text);          // null if it is not valid UTF-8

}  // namespace amanda::python
