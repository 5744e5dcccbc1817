#include "tensor.h"

#include <fmt/format.h>
#include <pybind11/numpy.h>

#include <cstring>

#include "amanda/error.h"
#include "dtypes.h"
#include "python_bridge.h"

namespace amanda::tensorflow {
namespace {

bool has_contents_in_order(const py::array& array) { return (array.flags() & py::array::c_style) != 0; }

IntVector sizes_of(const py::array& array) {
  IntVector sizes;
  for (py::ssize_t i = 0; i < array.ndim(); ++i) sizes.push_back(array.shape(i));
  return sizes;
}

/// The object as an array of numpy, if it is one, or if numpy can make one without guessing a type.
py::array as_array(py::handle object) {
  if (py::isinstance<py::array>(object)) return py::reinterpret_borrow<py::array>(object);
  if (py::hasattr(object, "__array__")) {  // a scalar of numpy, an eager tensor
    const py::object made = py::module_::import("numpy").attr("asarray")(object);
    if (py::isinstance<py::array>(made)) return py::reinterpret_borrow<py::array>(made);
  }
  throw python::ConversionError(fmt::format("{} where a numpy array is needed",
                                            py::cast<std::string>(py::type::handle_of(object).attr("__name__"))));
}

}  // namespace

TensorPtr owned(TF_Tensor* tensor) {
  return TensorPtr(tensor, [](TF_Tensor* unused) { c_api().TF_DeleteTensor(unused); });
}

IntVector sizes_of(const TF_Tensor* tensor) {
  IntVector sizes;
  const int rank = c_api().TF_NumDims(tensor);
  for (int i = 0; i < rank; ++i) sizes.push_back(c_api().TF_Dim(tensor, i));
  return sizes;
}

std::string text_of(DataType type, const IntVector& sizes) {
  std::string text = name_of(type) + " [";
  for (size_t i = 0; i < sizes.size(); ++i) {
    text += (i ? ", " : "") + (sizes[i] == kUnknown ? std::string("?") : std::to_string(sizes[i]));
  }
  return text + "]";
}

std::string text_of(const TF_Tensor* tensor) { return text_of(c_api().TF_TensorType(tensor), sizes_of(tensor)); }

TensorPtr allocate(DataType type, const IntVector& sizes) {
  const Dtype* dtype = dtype_of(type);
  if (!dtype) throw Error("a tensor of " + name_of(type) + " cannot be made");
  size_t bytes = dtype->item_size;
  for (int64_t size : sizes) bytes *= size;
  TF_Tensor* made = c_api().TF_AllocateTensor(type, sizes.data(), static_cast<int>(sizes.size()), bytes);
  if (!made) throw std::bad_alloc();
  return owned(made);
}

py::object array_of(const TensorPtr& tensor) {
  const Dtype* dtype = dtype_of(c_api().TF_TensorType(tensor.get()));
  if (!dtype) return py::none();
  const IntVector sizes = sizes_of(tensor.get());
  const py::capsule owner(new TensorPtr(tensor), [](void* held) { delete static_cast<TensorPtr*>(held); });
  const py::dtype type = py::reinterpret_borrow<py::dtype>(dtype->numpy);
  const std::vector<py::ssize_t> shape(sizes.begin(), sizes.end());
  py::array array(type, shape, c_api().TF_TensorData(tensor.get()), owner);
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

TensorPtr copy_of(py::handle object) {
  py::array array = as_array(object);
  const DataType type = type_of(array.dtype().ptr());
  if (type == 0) {
    throw python::ConversionError(
        fmt::format("an array of {}, which has no type in TensorFlow", py::cast<std::string>(py::str(array.dtype()))));
  }
  if (!has_contents_in_order(array)) {
    array = py::array::ensure(array, py::array::c_style);
    if (!array) throw py::error_already_set();
  }
  TensorPtr made = allocate(type, sizes_of(array));
  std::memcpy(c_api().TF_TensorData(made.get()), array.data(), array.nbytes());
  return made;
}

bool is_array_of(py::handle object, const TensorPtr& tensor) {
  if (!py::isinstance<py::array>(object)) return false;
  const auto array = py::reinterpret_borrow<py::array>(object);
  const Dtype* dtype = dtype_of(c_api().TF_TensorType(tensor.get()));
  return array.size() > 0 && !array.writeable() && array.data() == c_api().TF_TensorData(tensor.get()) && dtype &&
         array.dtype().is(py::handle(dtype->numpy)) && has_contents_in_order(array) &&
         sizes_of(array) == sizes_of(tensor.get());
}

}  // namespace amanda::tensorflow
