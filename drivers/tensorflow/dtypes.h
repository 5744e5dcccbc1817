// The data types whose tensors routines see. Python passes them when it loads the driver.
#pragma once

#include <Python.h>

#include <string>

#include "c_api.h"

namespace amanda::tensorflow {

struct Dtype {
  PyObject* numpy;   // a numpy.dtype; for the life of the process
  std::string name;  // as TensorFlow calls it: "float32"
  size_t item_size;
};

/// The entry of a type. Null if tensors of that type are not shown, such as strings, resources and variants.
const Dtype* dtype_of(DataType type) noexcept;
/// The type of a numpy.dtype; with the interpreter lock. 0 if there is none, or if it is not shown.
DataType type_of(PyObject* numpy_dtype);
/// "float32"; for a type that is not shown "TF_DataType 20".
std::string name_of(DataType type);
/// Adds types, or replaces them. `numpy` is a new reference. With the interpreter lock.
void add_dtype(DataType type, Dtype dtype);

}  // namespace amanda::tensorflow
