#include "python/identity/call_path.h"

#include <c10/util/SmallVector.h>
#include <torch/csrc/Exceptions.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "amanda/base/mutex.h"
#include "base/hash.h"
#include "base/port.h"
#include "base/python_hooks.h"
#include "python/identity/deaths.h"
#include "python/identity/frames.h"  // Python first
#include "python/identity/last_walk.h"
#include "python/identity/model_calls.h"
#include "python/identity/namespaces.h"
#include "python/identity/naming.h"
#include "python/identity/path_hash.h"
#include "python/identity/place_rules.h"
#include "python/identity/tag_table.h"

namespace amanda::python {
namespace {

// Kept for the life of the process, like the classes and functions they come from.
PyObject* name_function = nullptr;
PyObject* set_eval_frame = nullptr;                        // torch's: of the compiler's callback
PyCodeObject* run_module_code = nullptr;                   // nn.Module's __call__: its first local is the module
std::vector<PyCodeObject*> recompute_codes, engine_codes;  // sorted
size_t named_places = 0;                                   // with the interpreter lock
TagTable& blocks = *new TagTable;  // of frames inside `with amanda.root(name)`; threads may outlive static objects

bool contains(const std::vector<PyCodeObject*>& codes, PyCodeObject* code) {
  return std::binary_search(codes.begin(), codes.end(), code);
}

struct Gil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~Gil() { PyGILState_Release(state); }
};

// Hides a pending Python exception from our code, and restores it afterwards.
struct KeptError {
  PyObject *type, *value, *traceback;
  KeptError() { PyErr_Fetch(&type, &value, &traceback); }
  ~KeptError() { PyErr_Restore(type, value, traceback); }
};

// Walks this thread's frames, innermost first: `visit(code, instruction offset, globals, module or null, frame object
// or null)` until it returns false. A frame object lives as long as its frame.
//
// The direct walk needs no interpreter lock: this thread's frames change only when this thread runs Python code.
template <class Visit>
void walk(const Visit& visit) {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (!thread) return;  // a thread that never ran Python
#ifdef AMANDA_FRAME_LAYOUT
  if (walks_directly) {
    for (RawFrame* frame = innermost_frame(thread); frame; frame = outer_frame(frame)) {
      PyObject* module = code_of(frame) == run_module_code ? first_local(frame) : nullptr;
      if (!visit(code_of(frame), offset_of(frame), globals_of(frame), module, frame->frame_obj)) return;
    }
    return;
  }
#endif
  Gil gil;
  KeptError kept;
  PyFrameObject* frame = PyThreadState_GetFrame(thread);
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    PyObject* module = nullptr;
    if (code == run_module_code) {
      PyObject* locals = PyFrame_GetLocals(frame);
      module = locals ? PyMapping_GetItemString(locals, "self") : nullptr;
      if (!module) PyErr_Clear();
      Py_XDECREF(module);  // the frame keeps it alive
      Py_XDECREF(locals);
    }
    PyObject* globals = PyFrame_GetGlobals(frame);
    const bool go_on = visit(code, PyFrame_GetLasti(frame), globals, module, frame);
    Py_DECREF(globals);
    Py_DECREF(code);
    PyFrameObject* outer = go_on ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = outer;
  }
}

struct Seen {
  uint64_t place, name;
  PyObject* module;
  bool reborn;
  uint64_t block;
};

// The hash of a walk that remembers nothing: with blocks, where the interpreter's layout is not known, and at a
// thread's end.
template <bool kBlocks>
uint64_t whole_path(void*&) {
  c10::SmallVector<Seen, 64> frames;
  walk([&](PyCodeObject* code, int offset, PyObject* globals, PyObject* module, PyFrameObject* frame) {
    frames.push_back({place_in(instruction_at(code, offset), globals), is_free(code) ? hash_of_name(globals) : 0,
                      module, module && is_reborn(module), kBlocks && frame ? blocks.find(frame) : 0});
    return true;
  });
  uint64_t hash = 0;
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    hash = with_place(hash, frame->place, frame->name);
    if (frame->module) hash = with_module(hash, frame->module, frame->reborn);
    if (frame->block) hash = pytorch::mix(hash, frame->block);
  }
  return hash;  // 0 if there are no frames
}

// Until the process enters its first block, looking for blocks costs nothing.
[[gnu::hot]] uint64_t raw_path(void*& kept) {
#ifdef AMANDA_FRAME_LAYOUT
  if (walks_directly) {
    const PyThreadState* thread = PyGILState_GetThisThreadState();
    if (!thread) return 0;  // it never ran Python
    if (LastWalk* last = LastWalk::here(kept)) return last->hash(innermost_frame(thread), run_module_code);
  }
#endif
  return whole_path<false>(kept);
}

// Resolved places of all threads, by raw path. Their number is bounded: the least recently resolved are dropped, and a
// new epoch resolves them again.
class Descriptions {
 public:
  void add(uint64_t raw, Identified place) {
    constexpr size_t kMost = 1 << 15;
    std::lock_guard lock(mutex_);
    if (places_.size() >= kMost) {
      older_ = std::exchange(places_, {});
      start_new_epoch();
    }
    places_[raw] = std::move(place);
  }

  std::string find(uint64_t raw, std::string Identified::*detail) {
    std::lock_guard lock(mutex_);
    for (const auto* places : {&places_, &older_}) {
      if (auto found = places->find(raw); found != places->end()) return found->second.*detail;
    }
    return {};
  }

 private:
  Mutex mutex_;
  std::unordered_map<uint64_t, Identified> places_, older_;
};

Descriptions& descriptions() {
  static auto& all = *new Descriptions;  // threads may outlive static objects
  return all;
}

// Where torch.compile runs a function, it compiles each Python frame that this thread enters. Ours must not be
// compiled.
class Uncompiled : NoCopy {
 public:
  Uncompiled() : before_(PyObject_CallOneArg(set_eval_frame, Py_None)) {
    if (!before_) PyErr_Clear();
  }
  ~Uncompiled() {
    if (!before_) return;
    KeptError kept;
    PyObject* ours = PyObject_CallOneArg(set_eval_frame, before_);
    if (!ours) PyErr_Clear();
    Py_XDECREF(ours);
    Py_DECREF(before_);
  }

 private:
  PyObject* before_;
};

// Returns false if a Python exception is set.
bool find_place(uint64_t name_hash, const std::vector<pytorch::TensorOperand>& tensors, NamedCall& found) {
  Uncompiled uncompiled;
  const bool recomputing = pytorch::port::inside_backward();
  try {
    if (std::optional<NamedCall> kept = identify_kept(name_hash, tensors, recomputing)) {
      found = std::move(*kept);
      return true;
    }
    auto* frame = reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get()));
    const auto outwards = pybind11::reinterpret_steal<pybind11::object>(frame);
    found = name_call(frame ? outwards : pybind11::none(), name_hash, tensors, recomputing);
    return true;
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const pybind11::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return false;
}

// Signal handlers run wherever Python code runs, here too, and their exceptions belong to the program; so do those that
// another thread raises in this one (PyThreadState_SetAsyncExc). Our own failures are distinguished by trying again:
// they occur again.
OpId resolve(uint64_t raw, uint64_t name_hash, const std::vector<pytorch::TensorOperand>& tensors) {
  constexpr int kTries = 3;
  Gil gil;
  KeptError kept;
  static ModelCalls& model_calls = *new ModelCalls;
  const uint64_t epoch = pytorch::python_hooks.epoch.load(std::memory_order_acquire);
  const bool lasts =
      walks_directly && !pytorch::port::inside_backward();  // a recomputation's operands depend on the first run
  NamedCall call;
  Identified& place = call.place;
  ModelCalls::Place here;
  if (lasts) here = ModelCalls::here(name_hash, tensors, run_module_code);
  if (model_calls.find(here, place)) {
    const OpId id = place.id;
    descriptions().add(raw, std::move(place));
    return id;
  }
  bool found = find_place(name_hash, tensors, call);
  std::optional<python_error> raised;
  if (!found) {
    raised.emplace().persist();
    for (int tries = 1; tries < kTries && !found; ++tries) {
      found = find_place(name_hash, tensors, call);
      if (!found) PyErr_Clear();
    }
  }
  named_places += found;
  const OpId id = place.id;
  if (call.in_model && lasts && !raised) {
    if (here.key == 0) {
      here = ModelCalls::here(name_hash, tensors, run_module_code);
    } else {
      here.note(tensors);
    }
    if (here.epoch == epoch) model_calls.add(here, place);
  }
  if (found) descriptions().add(raw, std::move(place));
  if (!raised) return id;
  if (found || !PyErr_GivenExceptionMatches(raised->type, PyExc_Exception)) throw *raised;
  raised->restore();
  PyErr_WriteUnraisable(rules().name_running.ptr());
  return 0;  // not identified: analyzed each time
}

std::string parameter_name(PyObject* tensor) {
  Gil gil;
  KeptError kept;
  Uncompiled uncompiled;
  PyObject* name = PyObject_CallOneArg(name_function, tensor);
  const char* text = name ? PyUnicode_AsUTF8(name) : nullptr;
  if (!text) {
    Py_XDECREF(name);
    python_error raised;
    raised.persist();
    throw raised;
  }
  std::string found = text;
  Py_DECREF(name);
  return found;
}

std::string describe(uint64_t raw, Detail detail) {
  return descriptions().find(raw, detail == Detail::kModulePath ? &Identified::module_path : &Identified::source);
}

// True if this thread is inside one of `wanted`, with none of `others` further inside.
bool runs(const std::vector<PyCodeObject*>& wanted, const std::vector<PyCodeObject*>& others) {
  bool found = false;
  walk([&](PyCodeObject* code, int, PyObject*, PyObject*, PyFrameObject*) {
    found = contains(wanted, code);
    return !found && !contains(others, code);
  });
  return found;
}

bool in_recompute() { return runs(recompute_codes, engine_codes); }

bool in_backward_pass() { return runs(engine_codes, recompute_codes); }

bool is_symbolic(PyObject* object) {
  if (!object) return false;
  for (PyTypeObject* type = Py_TYPE(object); type; type = type->tp_base) {
    const std::string_view name = type->tp_name;
    if (name == "FakeTensor" || name == "FunctionalTensor") return true;
  }
  return false;
}

std::vector<PyCodeObject*> sorted_codes(PyObject* sequence) {
  std::vector<PyCodeObject*> codes;
  for (Py_ssize_t i = 0; i < PySequence_Size(sequence); ++i) {
    codes.push_back(reinterpret_cast<PyCodeObject*>(PySequence_GetItem(sequence, i)));  // kept
  }
  std::sort(codes.begin(), codes.end());
  return codes;
}

}  // namespace

void install_call_path(PyObject* name_parameter, PyObject* recomputing, PyObject* engine, PyObject* set_compiler) {
  name_function = Py_NewRef(name_parameter);
  set_eval_frame = Py_NewRef(set_compiler);
  run_module_code = reinterpret_cast<PyCodeObject*>(Py_NewRef(rules().run_module.ptr()));
  recompute_codes = sorted_codes(recomputing);
  engine_codes = sorted_codes(engine);
#ifdef AMANDA_FRAME_LAYOUT
  // A self-test: the direct walk must agree with the public API on the stack that imports us.
  std::vector<std::pair<PyCodeObject*, int>> slow, fast;
  auto record = [](auto& into) {
    return [&into](PyCodeObject* code, int offset, PyObject*, PyObject*, PyFrameObject*) {
      into.emplace_back(code, offset);
      return true;
    };
  };
  walk(record(slow));
  walks_directly = true;
  walk(record(fast));
  walks_directly = slow == fast;
#endif
  pytorch::python_hooks.raw_path = &raw_path;
  pytorch::python_hooks.resolve = &resolve;
  pytorch::python_hooks.describe = &describe;
  pytorch::python_hooks.parameter_name = &parameter_name;
  pytorch::python_hooks.in_recompute = &in_recompute;
  pytorch::python_hooks.in_backward_pass = &in_backward_pass;
  pytorch::python_hooks.is_symbolic = &is_symbolic;
}

void set_block(uintptr_t frame, uint64_t tag) {
  pytorch::python_hooks.raw_path = &whole_path<true>;
  const auto* object = reinterpret_cast<const void*>(frame);
  tag ? blocks.set(object, tag) : static_cast<void>(blocks.erase(object));
}

bool walks_frames_directly() { return walks_directly; }

void walk_frames_directly(bool on) {
#ifdef AMANDA_FRAME_LAYOUT
  walks_directly = on;
#endif
  start_new_epoch();
}

size_t count_named_places() { return named_places; }

std::vector<PyObject*> running_modules() {
  std::vector<PyObject*> modules;
  walk([&](PyCodeObject*, int, PyObject*, PyObject* module, PyFrameObject*) {
    if (module) modules.push_back(module);
    return true;
  });
  return modules;
}

size_t count_frames() {
  size_t frames = 0;
  walk([&](PyCodeObject*, int, PyObject*, PyObject*, PyFrameObject*) {
    ++frames;
    return true;
  });
  return frames;
}

}  // namespace amanda::python
