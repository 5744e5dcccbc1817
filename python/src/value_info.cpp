// A driver's description of an operand, in Python.
#include <pybind11/stl.h>

#include "amanda/value.h"
#include "module.h"

namespace amanda::python {
namespace {

const char* kind_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::kNone: return "none";
    case ValueKind::kTensor: return "tensor";
    case ValueKind::kTensors: return "tensors";
    case ValueKind::kNumber: return "number";
    case ValueKind::kNumbers: return "numbers";
    case ValueKind::kOther: break;
  }
  return "other";
}

using Sizes = std::vector<std::optional<int64_t>>;

std::optional<Sizes> sizes(const ValueInfo& info) {
  if (!info.sizes) return std::nullopt;
  Sizes known;
  for (int64_t size : *info.sizes) known.push_back(size == kUnknown ? std::nullopt : std::optional(size));
  return known;
}

}  // namespace

void bind_value_info(py::module_& m) {
  py::class_<ValueInfo>(m, "ValueInfo", "An operand, described in no framework's terms; see amanda/value.h.")
      .def_property_readonly(
          "kind", [](const ValueInfo& info) { return kind_name(info.kind); },
          "None, tensor, tensors, number, numbers or other.")
      .def_property_readonly(
          "dtype", [](const ValueInfo& info) { return std::string(info.dtype); }, "Empty: not known.")
      .def_property_readonly("sizes", &sizes, "None: not known.")
      .def_readonly("device", &ValueInfo::device, "Of a tensor.")
      .def_readonly("elements", &ValueInfo::elements, "Of a list of tensors.");
}

}  // namespace amanda::python
