#include "python/steps.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "python/frames.h"
#include "python/module_names.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

struct Known {
  py::object module;  // the name of the code's Python module; null: it has none
  py::object step;
  StepFacts facts;
};

// By code and instruction; a function may belong to several modules. Under the interpreter lock.
using OfCode = std::unordered_map<int, std::vector<Known>>;
std::unordered_map<uintptr_t, OfCode>& known = *new std::unordered_map<uintptr_t, OfCode>;

PyObject* module_of(PyObject* globals) {
  static PyObject* const key = PyUnicode_InternFromString("__name__");
  PyObject* name = PyDict_GetItemWithError(globals, key);
  return name && PyUnicode_CheckExact(name) ? name : nullptr;
}

bool same(PyObject* a, PyObject* b) { return a == b || (a && b && PyUnicode_Compare(a, b) == 0); }

const Known* find(uintptr_t code, int offset, PyObject* module) {
  const auto of_code = known.find(code);
  if (of_code == known.end()) return nullptr;
  const auto found = of_code->second.find(offset);
  if (found == of_code->second.end()) return nullptr;
  for (const Known& one : found->second) {
    if (same(one.module.ptr(), module)) return &one;
  }
  return nullptr;
}

// The step keeps the texts and the mark.
StepFacts facts_of(const py::object& step) {
  const py::object spot = step[py::int_(0)], source = spot.attr("source"), mark = step[py::int_(2)];
  StepFacts facts{.spot = spot, .part = {}, .lends = spot.attr("lends").cast<bool>()};
  facts.part.source = view(source);
  facts.part.is_checkpoint = spot.attr("is_checkpoint").cast<bool>();
  facts.part.is_machinery = spot.attr("is_machinery").cast<bool>();
  if (!mark.is_none()) facts.part.mark = PyTuple_GET_ITEM(mark.ptr(), 0);
  return facts;
}

// See install_steps().
struct Python {
  py::object make;
  PyObject* run_module;
  PyTypeObject* step;
  py::dict names;
  py::object unwrapped;
};
Python* python = nullptr;

// The module that counts as running where this one is called; None: none.
py::object running(const py::object& module) {
  if (module.is_none()) return module;
  const auto address = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(module.ptr()));
  return python->names.contains(address) ? module : python->unwrapped(module);
}

// The step, with its module. `module`: what the frame runs.
py::object with_module(const py::object& step, const py::object& module) {
  const py::object runs = running(module);
  if (runs.is_none()) return step;
  const auto fields = py::make_tuple(step[py::int_(0)], runs, step[py::int_(2)], step[py::int_(3)]);
  auto made = py::reinterpret_steal<py::object>(
      PyTuple_Type.tp_new(python->step, py::make_tuple(fields).ptr(), nullptr));  // without NamedTuple's Python
  if (!made) throw py::error_already_set();
  return made;
}

// The step of frames of this code at this instruction, which is made if it is not kept yet; null: none can be kept.
const Known* keep(const py::object& code, int offset, PyObject* module) {
  const auto address = reinterpret_cast<uintptr_t>(code.ptr());
  if (const Known* one = find(address, offset, module)) return one;
  const auto name = py::reinterpret_borrow<py::object>(module);
  const py::object step = python->make(code, offset, name ? name : py::none());
  if (step.is_none()) return nullptr;
  std::vector<Known>& here = known[address][offset];
  here.push_back({name, step, facts_of(step)});
  return &here.back();
}

// What steps_from() returns, while it is made.
struct Steps {
  const std::vector<uintptr_t>& addresses;
  py::list all{}, marked{};

  // `frame`: null if the frame has no object, which one at an address has.
  template <class ModuleOf>
  void add(const py::object& step, const PyObject* code, PyObject* frame, const ModuleOf& module_of) {
    if (frame && std::find(addresses.begin(), addresses.end(), reinterpret_cast<uintptr_t>(frame)) != addresses.end())
      marked.append(py::make_tuple(all.size(), py::handle(frame)));
    all.append(code == python->run_module ? with_module(step, module_of()) : step);
  }
  py::object result() const { return py::make_tuple(all, marked); }
};

#ifdef AMANDA_FRAME_LAYOUT
py::object or_none(PyObject* borrowed) { return borrowed ? py::reinterpret_borrow<py::object>(borrowed) : py::none(); }

// Calls `add(kept, code, frame)`. Without frame objects, which the interpreter would have to make. False: a step is not
// kept yet, or the interpreter's own frames do not tell.
template <class Add>
bool each_kept(RawFrame* frame, const Add& add) {
  if (!walks_directly) return false;
  for (; frame; frame = outer_frame(frame)) {
    if (_PyFrame_IsIncomplete(frame)) return false;
    const Known* one = find(reinterpret_cast<uintptr_t>(code_of(frame)), offset_of(frame), module_of(frame->f_globals));
    if (!one) return false;
    add(*one, reinterpret_cast<PyObject*>(code_of(frame)), frame);
  }
  return true;
}
#endif

bool add_kept([[maybe_unused]] const PyObject* innermost, [[maybe_unused]] Steps& steps) {
#ifdef AMANDA_FRAME_LAYOUT
  RawFrame* first = reinterpret_cast<const PyFrameObject*>(innermost)->f_frame;
  if (first->owner == FRAME_OWNED_BY_FRAME_OBJECT) return false;
  return each_kept(first, [&](const Known& one, PyObject* code, const RawFrame* frame) {
    const py::object step = one.step;
    steps.add(step, code, reinterpret_cast<PyObject*>(frame->frame_obj), [&] { return or_none(first_local(frame)); });
  });
#else
  return false;
#endif
}

}  // namespace

const PathStep& StepFacts::with_text() const {
  if (!part.text.empty() || !part.has_text()) return part;
  const py::object text = spot.attr("text");  // the spot keeps it
  if (!text.is_none()) part.text = view(text);
  return part;
}

bool runs_module() {
#ifdef AMANDA_FRAME_LAYOUT
  if (!walks_directly) return false;
  for (const RawFrame* frame = innermost_frame(PyThreadState_Get()); frame; frame = outer_frame(frame)) {
    if (reinterpret_cast<PyObject*>(code_of(frame)) == python->run_module) return true;
  }
#endif
  return false;
}

c10::SmallVector<KeptStep, 64> kept_steps() {
  c10::SmallVector<KeptStep, 64> steps;
#ifdef AMANDA_FRAME_LAYOUT
  const bool all =
      each_kept(innermost_frame(PyThreadState_Get()), [&](const Known& one, PyObject* code, const RawFrame* frame) {
        PyObject* module = code == python->run_module ? first_local(frame) : nullptr;
        steps.push_back({&one.facts, code, module, reinterpret_cast<PyObject*>(frame->frame_obj)});
      });
  if (!all) steps.clear();
#endif
  return steps;
}

bool keep_steps() {
#ifdef AMANDA_FRAME_LAYOUT
  if (!walks_directly) return false;
  // The Python code that this runs has frames of its own: these stay.
  for (const RawFrame* frame = innermost_frame(PyThreadState_Get()); frame; frame = outer_frame(frame)) {
    if (_PyFrame_IsIncomplete(const_cast<RawFrame*>(frame))) return false;
    const auto code = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(code_of(frame)));
    const Known* one = keep(code, offset_of(frame), module_of(frame->f_globals));
    if (!one) return false;
    const PathStep& part = one->facts.with_text();
    if (part.has_text() && part.text.empty()) py::object(one->facts.spot).attr("as_text")();
  }
  return true;
#else
  return false;
#endif
}

const StepFacts* find_step(PyCodeObject* code, int offset, PyObject* globals) {
  const Known* one = find(reinterpret_cast<uintptr_t>(code), offset, module_of(globals));
  return one ? &one->facts : nullptr;
}

void install_steps(py::object make, const py::object& run_module, const py::object& step, py::dict names,
                   py::object unwrapped) {
  python = new Python{std::move(make), run_module.inc_ref().ptr(),
                      reinterpret_cast<PyTypeObject*>(step.inc_ref().ptr()), std::move(names), std::move(unwrapped)};
}

py::object steps_from(py::object frame, const std::vector<uintptr_t>& addresses) {
  if (frame.is_none()) frame = py::object();
  if (Steps kept{addresses}; frame && add_kept(frame.ptr(), kept)) return kept.result();
  Steps steps{addresses};
  while (frame) {
    auto* here = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(here)));
    const auto globals = py::reinterpret_steal<py::object>(PyFrame_GetGlobals(here));
    const Known* one = keep(code, PyFrame_GetLasti(here), module_of(globals.ptr()));
    if (!one) return py::none();
    const py::object step = one->step;
    steps.add(step, code.ptr(), frame.ptr(),
              [&] { return py::reinterpret_steal<py::object>(PyFrame_GetLocals(here)).attr("get")("self"); });
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(here)));
  }
  return steps.result();
}

void forget_steps(uintptr_t code) {
  const auto found = known.find(code);
  if (found == known.end()) return;
  const OfCode dropped = std::move(found->second);  // destroyed last: that may run Python code
  known.erase(found);
}

}  // namespace amanda::python
