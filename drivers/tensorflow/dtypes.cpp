#include "dtypes.h"

#include <fmt/format.h>

#include <array>
#include <atomic>

namespace amanda::tensorflow {
namespace {

// TF_DataType is below 100, but for references to variables, which no tap takes. Read without the interpreter lock.
std::array<std::atomic<const Dtype*>, 100> dtypes{};

bool is_known(DataType type) { return type > 0 && static_cast<size_t>(type) < dtypes.size(); }

}  // namespace

const Dtype* dtype_of(DataType type) noexcept {
  return is_known(type) ? dtypes[type].load(std::memory_order_acquire) : nullptr;
}

DataType type_of(PyObject* numpy_dtype) {
  for (size_t type = 1; type < dtypes.size(); ++type) {
    const Dtype* dtype = dtype_of(static_cast<DataType>(type));
    if (!dtype) continue;
    const int equal = PyObject_RichCompareBool(dtype->numpy, numpy_dtype, Py_EQ);
    if (equal < 0) PyErr_Clear();
    if (equal > 0) return static_cast<DataType>(type);
  }
  return 0;
}

std::string name_of(DataType type) {
  const Dtype* dtype = dtype_of(type);
  return dtype ? dtype->name : fmt::format("TF_DataType {}", type);
}

void add_dtype(DataType type, Dtype dtype) {
  // A replaced entry is leaked: descriptions of operands refer to its name.
  if (is_known(type)) dtypes[type].store(new Dtype(std::move(dtype)), std::memory_order_release);
}

}  // namespace amanda::tensorflow
