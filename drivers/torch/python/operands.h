// Operands as Python objects, and Python objects as operands.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <Python.h>

namespace amanda::python {

/// The operand as routines get it, a new reference.
PyObject* show(const c10::IValue& value, const c10::Argument& argument);
PyObject* show(const at::Tensor& tensor);  // the same, not boxed
/// The object as an operand. Throws `ConversionError`.
c10::IValue take(PyObject* object, const c10::Argument& argument);
/// The schema's own type of an argument; dtypes and the like are integers on the stack.
const c10::Type* element(const c10::TypePtr& type);

}  // namespace amanda::python
