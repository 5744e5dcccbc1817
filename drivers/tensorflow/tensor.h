// TensorFlow's tensors, and numpy's arrays of their data.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "amanda/value.h"
#include "c_api.h"

namespace amanda::tensorflow {

namespace py = pybind11;

/// A handle on a tensor; several may share its buffer, which TensorFlow does not change while another handle lives.
using TensorPtr = std::shared_ptr<TF_Tensor>;

TensorPtr owned(TF_Tensor* tensor);
IntVector sizes_of(const TF_Tensor* tensor);
/// "float32 [2, 3]".
std::string text_of(DataType type, const IntVector& sizes);
std::string text_of(const TF_Tensor* tensor);

/// A new tensor; its contents are arbitrary.
TensorPtr allocate(DataType type, const IntVector& sizes);

// With the interpreter lock.

/// A read-only array on the tensor's data, which it keeps alive; None for a type that is not shown.
py::object array_of(const TensorPtr& tensor);
/// A tensor with a copy of the array's data. Throws `ConversionError` for an object that is neither an array nor a
/// scalar of numpy.
TensorPtr copy_of(py::handle array);
/// True if it is the array that array_of() returned for this tensor.
bool is_array_of(py::handle array, const TensorPtr& tensor);

}  // namespace amanda::tensorflow
