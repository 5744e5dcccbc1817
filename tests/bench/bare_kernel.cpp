// A kernel for aten::add.Tensor above autograd that counts, or calls a Python function with the first operand, and
// passes the call on: the least that an observer of operators in the dispatcher can cost.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <Python.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

namespace {

constexpr auto kKey = c10::DispatchKey::DeferredInit;  // Amanda has others
constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kKey);

long calls = 0;
PyObject* callback = nullptr;

void call_python(const at::Tensor& operand) {
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* shown = THPVariable_Wrap(operand);
  PyObject* result = PyObject_CallOneArg(callback, shown);
  if (!result) PyErr_WriteUnraisable(callback);
  Py_XDECREF(result);
  Py_DECREF(shown);
  PyGILState_Release(state);
}

at::Tensor add(c10::DispatchKeySet keys, const at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("aten::add", "Tensor")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Scalar&)>();
  ++calls;
  if (callback) call_python(a);
  return op.redispatch(keys & kBelow, a, b, alpha);
}

TORCH_LIBRARY_IMPL(_, DeferredInit, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, DeferredInit, m) { m.impl("add.Tensor", TORCH_FN(add)); }

}  // namespace

// `function`: that is called at each operator; None: the kernel only counts.
extern "C" void enter(PyObject* function) {
  callback = function == Py_None ? nullptr : function;
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}
extern "C" void leave() { c10::impl::tls_set_dispatch_key_included(kKey, false); }
extern "C" long count() { return calls; }
