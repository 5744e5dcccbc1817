// amanda._rematerialization: the tool, and the hooks through which autograd saves tensors.
#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>
#include <random>

#include "amanda/tool_capsule.h"
#include "rematerialization/tool.h"

namespace {

namespace py = pybind11;
using amanda::tools::rematerialization::heuristic_of;
using amanda::tools::rematerialization::Rematerialization;
using amanda::tools::rematerialization::Rematerializer;
using amanda::tools::rematerialization::Saved;
using Hooks = at::SavedTensorDefaultHooks;

// The object that a pack hook returns to autograd. Nobody waits for the rematerializer with the interpreter lock: an
// operator that runs again may need that lock.
class SavedTensor : amanda::NoCopy {
 public:
  SavedTensor(std::shared_ptr<Rematerializer> owner, const at::Tensor& tensor) : owner_(std::move(owner)) {
    const py::gil_scoped_release no_gil;
    saved_ = owner_->pack(tensor);
  }
  ~SavedTensor() {
    const py::gil_scoped_release no_gil;
    owner_->release(saved_);
  }

  at::Tensor unpack() const {
    const py::gil_scoped_release no_gil;
    return owner_->unpack(saved_);
  }

 private:
  std::shared_ptr<Rematerializer> owner_;
  Saved saved_;
};

std::function<double(int64_t)> costs(bool are_equal) {
  return [are_equal](int64_t ns) { return are_equal ? 1 : static_cast<double>(ns); };
}
std::function<double(int64_t)> random_costs(uint64_t seed) {
  auto numbers = std::make_shared<std::mt19937_64>(seed);
  return [numbers](int64_t) { return std::exp(std::uniform_real_distribution(0.0, 20.0)(*numbers)); };
}

c10::SafePyObject safe(const py::object& object) { return {object.inc_ref().ptr(), getPyInterpreter()}; }

py::capsule make_tool(std::shared_ptr<Rematerializer> owner) {
  struct Functions {
    py::object pack, unpack;
  };
  // Destroyed with the tool, which holds the interpreter lock then.
  auto functions = std::make_shared<Functions>();
  functions->pack =
      py::cpp_function([owner](const at::Tensor& tensor) { return std::make_unique<SavedTensor>(owner, tensor); });
  functions->unpack = py::cpp_function([](const SavedTensor& saved) { return saved.unpack(); });
  auto push = [functions] {
    const py::gil_scoped_acquire gil;
    Hooks::lazy_initialize();
    Hooks::push_hooks(safe(functions->pack), safe(functions->unpack));
  };
  // Scopes may be left in any order: hooks that were pushed later stay.
  auto pop = [functions] {
    const py::gil_scoped_acquire gil;
    std::vector<std::pair<c10::SafePyObject, c10::SafePyObject>> later;
    while (!Hooks::get_tls_state().stack.empty()) {
      auto top = Hooks::pop_hooks();
      if (top.first.ptr(getPyInterpreter()) == functions->pack.ptr()) break;
      later.push_back(std::move(top));
    }
    for (; !later.empty(); later.pop_back()) Hooks::push_hooks(later.back().first, later.back().second);
  };
  return amanda::python::capsule_of(std::make_unique<Rematerialization>(std::move(owner), push, pop));
}

}  // namespace

PYBIND11_MODULE(_rematerialization, m) {
  m.doc() = "Dynamic tensor rematerialization. Use it through `amanda.research`.";
  py::class_<SavedTensor>(m, "SavedTensor", "What autograd keeps in place of a tensor.");
  py::class_<Rematerializer::Row>(m, "Row", "What happened to the results of one operator type in one module.")
      .def_readonly("op", &Rematerializer::Row::op)
      .def_readonly("module_path", &Rematerializer::Row::module_path)
      .def_readonly("kept_because", &Rematerializer::Row::kept_because)
      .def_readonly("kept", &Rematerializer::Row::kept)
      .def_readonly("kept_bytes", &Rematerializer::Row::kept_bytes)
      .def_readonly("evicted", &Rematerializer::Row::evicted)
      .def_readonly("evicted_bytes", &Rematerializer::Row::evicted_bytes)
      .def_readonly("recomputed", &Rematerializer::Row::recomputed)
      .def_readonly("recompute_ns", &Rematerializer::Row::recompute_ns);
  py::class_<Rematerializer, std::shared_ptr<Rematerializer>>(m, "Rematerializer", "What a tool does, and has done.")
      .def(py::init([](size_t budget, const std::string& heuristic, bool equal_costs, std::optional<uint64_t> seed) {
             return std::make_shared<Rematerializer>(amanda::tools::rematerialization::Options{
                 budget, heuristic_of(heuristic), seed ? random_costs(*seed) : costs(equal_costs)});
           }),
           py::arg("budget"), py::arg("heuristic"), py::arg("equal_costs"), py::arg("seed") = std::nullopt,
           "`seed`: of random costs, as a machine may have them that is busy.")
      .def("tool", &make_tool, "A tool that works for it.")
      .def("rows", &Rematerializer::rows, py::call_guard<py::gil_scoped_release>())
      .def("reset", &Rematerializer::reset, py::call_guard<py::gil_scoped_release>())
      .def(
          "left_out", [](Rematerializer& owner) { return owner.compiled().count(); },
          "How many operators of compiled functions are not run again.")
      .def_property_readonly("live", &Rematerializer::live)
      .def_property_readonly("peak", &Rematerializer::peak);
}
