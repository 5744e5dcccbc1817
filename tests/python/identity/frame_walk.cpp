// The walks over Python's frames alone, without torch, as a module for any Python: see test_other_pythons.py.
#include <vector>

#include "python/identity/last_walk.h"  // Python first

namespace amanda::python {

bool is_reborn_in_grave(PyObject*) { return false; }      // no module dies here
bool is_free_code(const PyCodeObject*) { return false; }  // all globals are of imported modules
uint64_t hash_of_name(PyObject*) { return 0; }

namespace {

PyCodeObject* run_module = nullptr;

/// What LastWalk computes, by Python's public functions. 0: a Python error is set.
uint64_t public_path() {
  struct Seen {
    uint64_t place;
    PyObject* module;
  };
  std::vector<Seen> frames;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    PyObject* module = code == run_module ? PyFrame_GetVarString(frame, "self") : nullptr;
    if (code == run_module && !module) return 0;
    PyObject* globals = PyFrame_GetGlobals(frame);
    frames.push_back({place_in(instruction_at(code, PyFrame_GetLasti(frame)), globals), module});
    Py_DECREF(globals);
    Py_XDECREF(module);  // the frame keeps it alive
    Py_DECREF(code);
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  uint64_t hash = 0;
  for (size_t i = frames.size(); i-- > 0;) {
    hash = with_place(hash, frames[i].place, 0);
    if (frames[i].module) hash = with_module(hash, frames[i].module, false);
  }
  return hash;
}

/// The path of the frames here: by a walk that remembers the one before, by the same again, by one without memory, and
/// by Python's public functions.
PyObject* paths(PyObject*, PyObject*) {
  thread_local void* kept = nullptr;
  LastWalk* last = LastWalk::here(kept);
  RawFrame* innermost = innermost_frame(PyGILState_GetThisThreadState());
  const uint64_t first = last->hash(innermost, run_module), second = last->hash(innermost, run_module);
  const uint64_t fresh = LastWalk().hash(innermost, run_module), plain = public_path();
  if (plain == 0) return nullptr;
  return Py_BuildValue("KKKK", first, second, fresh, plain);
}

PyObject* install(PyObject*, PyObject* code) {
  run_module = reinterpret_cast<PyCodeObject*>(Py_NewRef(code));
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"paths", paths, METH_NOARGS, nullptr}, {"install", install, METH_O, nullptr}, {}};
PyModuleDef module{PyModuleDef_HEAD_INIT, "frame_walk", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace amanda::python

PyMODINIT_FUNC PyInit_frame_walk() { return PyModule_Create(&amanda::python::module); }
