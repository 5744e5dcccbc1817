#include "python/operands.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <algorithm>

#include "base/stack_value.h"
#include "base/tensor_handle.h"
#include "python_bridge.h"

namespace amanda::python {
// NOTE: [showing a tensor] A tensor that already has a Python object is shown as that object. A tensor without one must
// not get one: it would stay attached, and nn.Parameter(result) would fail ("already associated to a python object").
// Such a tensor is shown through another handle on the same memory, with the same gradient edge.
[[gnu::hot]] PyObject* show(const at::Tensor& tensor) {
  if (!tensor.defined()) return Py_NewRef(Py_None);
  if (pytorch::py_object(tensor)) return THPVariable_Wrap(tensor);
  at::Tensor handle = pytorch::alias_of(tensor);
  pytorch::take_over_edge(tensor, handle);
  return THPVariable_Wrap(handle);
}

const c10::Type* element(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType().get() : type.get();
}

PyObject* show(const c10::IValue& value, const c10::Argument& argument) {
  if (value.isNone()) return Py_NewRef(Py_None);
  if (value.isTensor()) return show(value.toTensor());
  if (value.isList()) {
    const auto members = value.toListRef();
    const bool tensors = std::all_of(members.begin(), members.end(),
                                     [](const c10::IValue& member) { return member.isTensor() || member.isNone(); });
    if (tensors && !members.empty()) {
      PyObject* list = PyList_New(members.size());
      for (size_t i = 0; i < members.size(); ++i) {
        PyList_SET_ITEM(list, i, members[i].isNone() ? Py_NewRef(Py_None) : show(members[i].toTensor()));
      }
      return list;
    }
  }
  if (value.isInt()) {
    switch (element(argument.real_type())->kind()) {
      case c10::TypeKind::ScalarTypeType:
        return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(value.toInt()))));
      case c10::TypeKind::LayoutType:
        return Py_NewRef(reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(value.toInt()))));
      case c10::TypeKind::MemoryFormatType:
        return Py_NewRef(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(value.toInt())));
      default: break;
    }
  }
  return torch::jit::toPyObject(value).release().ptr();
}

c10::IValue take(PyObject* object, const c10::Argument& argument) {
  try {
    // The tool may keep a wrapped tensor: the driver copies the handle, never the object.
    return torch::jit::toIValue(object, argument.type());
  } catch (const std::exception&) {
    PyErr_Clear();
    throw ConversionError(c10::str("got ", Py_TYPE(object)->tp_name, " where ", argument.type()->str(), " is needed"));
  }
}

}  // namespace amanda::python
