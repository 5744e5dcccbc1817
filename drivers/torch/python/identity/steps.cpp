#include "python/identity/steps.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python/identity/frames.h"
#include "python/identity/namespaces.h"
#include "python/identity/place_rules.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

// Some code in a Python module; a function may belong to several. Under the interpreter lock.
struct InModule {
  py::object module;  // its name; null if it has none
  PyObject* globals;  // that it was last seen in, borrowed: only compared
  std::shared_ptr<SpotCode> code;
  std::unordered_map<int, LastingStep> steps;  // by instruction
};
std::unordered_map<uintptr_t, std::vector<InModule>>& known =
    *new std::unordered_map<uintptr_t, std::vector<InModule>>;  // by code

PyObject* module_of(PyObject* globals) {
  static PyObject* const key = PyUnicode_InternFromString("__name__");
  PyObject* name = PyDict_GetItemWithError(globals, key);
  return name && PyUnicode_CheckExact(name) ? name : nullptr;
}

bool same(PyObject* a, PyObject* b) { return a == b || (a && b && PyUnicode_Compare(a, b) == 0); }

InModule* find(uintptr_t code, PyObject* module) {
  const auto of_code = known.find(code);
  if (of_code == known.end()) return nullptr;
  for (InModule& one : of_code->second) {
    if (same(one.module.ptr(), module)) return &one;
  }
  return nullptr;
}

const LastingStep* find(PyCodeObject* code, int offset, PyObject* globals) {
  InModule* in = find(reinterpret_cast<uintptr_t>(code), module_of(globals));
  if (!in) return nullptr;
  if (in->globals != globals) {
    in->globals = globals;
    note_namespace(code, globals);
  }
  const auto found = in->steps.find(offset);
  return found == in->steps.end() ? nullptr : &found->second;
}

size_t steps_made = 0;

// The code's last constant may be a mark, which is a pair.
bool may_be_marked(const PyCodeObject* code) {
  const Py_ssize_t count = PyTuple_GET_SIZE(code->co_consts);
  PyObject* last = count > 0 ? PyTuple_GET_ITEM(code->co_consts, count - 1) : nullptr;
  return last && PyTuple_CheckExact(last) && PyTuple_GET_SIZE(last) == 2;
}

// The step of frames of this code at this instruction, which is made if it is not kept yet. Null if none can be kept.
// `self`: the first local of the frame.
const LastingStep* keep(const py::object& code_object, int offset, PyObject* globals,
                        const std::function<py::object()>& self) {
  const auto address = reinterpret_cast<uintptr_t>(code_object.ptr());
  auto* code = reinterpret_cast<PyCodeObject*>(code_object.ptr());
  if (const LastingStep* one = find(code, offset, globals)) return one;
  PyObject* module = module_of(globals);
  const InModule* in = find(address, module);
  std::shared_ptr<SpotCode> of = in ? in->code : nullptr;
  const auto name = py::reinterpret_borrow<py::object>(module);
  if (!of) {
    if (rules().is_resumed(code_object).cast<bool>()) return nullptr;
    of = std::make_shared<SpotCode>(code, name ? name : py::none());
  }
  const py::object graph_module = of->is_graphs() ? self() : py::none();
  LastingStep step{std::make_shared<Spot>(of, code, offset, graph_module), py::none(), {}};
  if (may_be_marked(code)) step.mark = rules().mark_of_function(code_object, offset);
  ++steps_made;
  InModule* into = find(address, module);  // again: Python code may have run
  if (!into) {
    into = &known[address].emplace_back(InModule{name, globals, of, {}});
    note_namespace(code, globals);
  }
  return &into->steps.try_emplace(offset, std::move(step)).first->second;
}

py::object new_step(const py::object& spot, const py::object& module, const py::object& mark,
                    const py::object& enters) {
  const auto fields = py::make_tuple(spot, module, mark, enters);
  auto made = py::reinterpret_steal<py::object>(  // without NamedTuple's Python
      PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(rules().step_class.ptr()), py::make_tuple(fields).ptr(),
                          nullptr));
  if (!made) throw py::error_already_set();
  return made;
}

py::object shown(const LastingStep& step) {
  if (!step.step) step.step = new_step(py::cast(step.spot), py::none(), step.mark, py::bool_(false));
  return step.step;
}

bool is_a(const py::object& object, const py::object& cls) {
  return PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(cls.ptr())) != 0;
}

// A wrapper of torch.compile's around a module. There is none until the program has imported the compiler.
bool is_wrapper(const py::object& module) {
  const auto compiler = py::reinterpret_steal<py::object>(PyImport_GetModule(rules().compiler.ptr()));
  if (!compiler) {
    if (PyErr_Occurred()) throw py::error_already_set();
    return false;
  }
  const py::object wrapper = py::getattr(compiler, "OptimizedModule", py::none());
  return !wrapper.is_none() && is_a(module, wrapper);
}

// The module that counts as running where this one is called, or None: a wrapper counts as the module in it.
py::object running(const py::object& module) {
  if (module.is_none()) return module;
  const auto address = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(module.ptr()));
  const bool runs = rules().names.contains(address) || (is_a(module, rules().module_class) && !is_wrapper(module));
  return runs ? module : py::none();
}

// The step, with its module. `module`: the module that the frame runs.
py::object with_module(const py::object& step, const py::object& module) {
  const py::object runs = running(module);
  return runs.is_none() ? step : new_step(step[py::int_(0)], runs, step[py::int_(2)], step[py::int_(3)]);
}

// The frames whose steps depend on more than the instruction and the module.
class RootFrames {
 public:
  RootFrames() : entered_(rules().entered()) {
    for (const auto& [address, code] : entered_) addresses_.push_back(address.cast<uintptr_t>());
    for (py::handle address : rules().blocks) addresses_.push_back(address.cast<uintptr_t>());
  }

  bool contain(const PyObject* frame) const {
    return std::find(addresses_.begin(), addresses_.end(), reinterpret_cast<uintptr_t>(frame)) != addresses_.end();
  }
  // The step of one of them. Only Python knows its mark.
  py::object step_of(const py::object& step, const py::object& frame) const {
    const auto address = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(frame.ptr()));
    const auto code = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame.ptr()))));
    const bool enters = PyDict_GetItemWithError(entered_.ptr(), address.ptr()) == code.ptr();
    py::object mark = step[py::int_(2)];
    if (rules().blocks.contains(address)) mark = rules().mark_of(frame);
    return new_step(step[py::int_(0)], step[py::int_(1)], mark, py::bool_(enters));
  }

 private:
  const py::dict entered_;
  std::vector<uintptr_t> addresses_;
};

// The result of steps_from(), while it is made.
class Steps {
 public:
  explicit Steps(const RootFrames& roots) : roots_(roots) {}

  // `frame`: null if the frame has no object. A root's frame has one.
  template <class ModuleOf>
  void add(const py::object& step, const PyObject* code, PyObject* frame, const ModuleOf& module_of) {
    if (frame && roots_.contain(frame)) at_roots_.emplace_back(all_.size(), py::reinterpret_borrow<py::object>(frame));
    all_.append(code == rules().run_module.ptr() ? with_module(step, module_of()) : step);
  }
  py::list finish() {
    for (const auto& [i, frame] : at_roots_) all_[i] = roots_.step_of(all_[i], frame);
    return std::move(all_);
  }

 private:
  const RootFrames& roots_;
  py::list all_;
  std::vector<std::pair<size_t, py::object>> at_roots_;
};

#ifdef AMANDA_FRAME_LAYOUT
py::object or_none(PyObject* borrowed) { return borrowed ? py::reinterpret_borrow<py::object>(borrowed) : py::none(); }

// Calls `add(kept, code, frame)`. Uses no frame objects, which the interpreter would have to make. Returns false if a
// step is not kept yet, or if the interpreter's own frames cannot be read.
template <class Add>
bool each_kept(RawFrame* frame, const Add& add) {
  if (!walks_directly) return false;
  for (; frame; frame = outer_frame(frame)) {
    if (_PyFrame_IsIncomplete(frame)) return false;
    const LastingStep* one = find_step(code_of(frame), offset_of(frame), globals_of(frame));
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
  return each_kept(first, [&](const LastingStep& one, PyObject* code, const RawFrame* frame) {
    steps.add(shown(one), code, reinterpret_cast<PyObject*>(frame->frame_obj),
              [&] { return or_none(first_local(frame)); });
  });
#else
  return false;
#endif
}

}  // namespace

PathStep LastingStep::part() const {
  PathStep part = spot->part();
  if (!mark.is_none()) part.mark = PyTuple_GET_ITEM(mark.ptr(), 0);
  return part;
}

const LastingStep* find_step(PyCodeObject* code, int offset, PyObject* globals) { return find(code, offset, globals); }

bool runs_module() {
#ifdef AMANDA_FRAME_LAYOUT
  if (!walks_directly) return false;
  for (const RawFrame* frame = innermost_frame(PyThreadState_Get()); frame; frame = outer_frame(frame)) {
    if (reinterpret_cast<PyObject*>(code_of(frame)) == rules().run_module.ptr()) return true;
  }
#endif
  return false;
}

c10::SmallVector<KeptStep, 64> kept_steps() {
  c10::SmallVector<KeptStep, 64> steps;
#ifdef AMANDA_FRAME_LAYOUT
  const bool all = each_kept(innermost_frame(PyThreadState_Get()),
                             [&](const LastingStep& one, PyObject* code, const RawFrame* frame) {
                               PyObject* module = code == rules().run_module.ptr() ? first_local(frame) : nullptr;
                               steps.push_back({&one, code, module, reinterpret_cast<PyObject*>(frame->frame_obj)});
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
    const LastingStep* one =
        keep(code, offset_of(frame), globals_of(frame), [&] { return or_none(first_local(frame)); });
    if (!one) return false;
    if (const std::shared_ptr<Spot> spot = one->spot; spot->part().has_text()) spot->make_text();
  }
  return true;
#else
  return false;
#endif
}

py::list steps_from(py::object frame) {
  const RootFrames roots;
  if (frame.is_none()) frame = py::object();
  if (Steps kept(roots); frame && add_kept(frame.ptr(), kept)) return kept.finish();
  Steps steps(roots);
  for (py::object each = frame; each;) {
    auto* here = reinterpret_cast<PyFrameObject*>(each.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(here)));
    const auto globals = py::reinterpret_steal<py::object>(PyFrame_GetGlobals(here));
    const auto self = [here] { return py::reinterpret_steal<py::object>(PyFrame_GetLocals(here)).attr("get")("self"); };
    const LastingStep* one = keep(code, PyFrame_GetLasti(here), globals.ptr(), self);
    if (!one) return rules().resumed_steps(frame, /*resumed=*/false);
    steps.add(shown(*one), code.ptr(), each.ptr(), self);
    each = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(here)));
  }
  return steps.finish();
}

size_t count_steps() { return steps_made; }

void forget_steps(uintptr_t code) {
  forget_namespaces(code);
  const auto found = known.find(code);
  if (found == known.end()) return;
  const std::vector<InModule> dropped = std::move(found->second);  // destroyed last: that may run Python code
  known.erase(found);
}

}  // namespace amanda::python
