#include <pybind11/stl.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "amanda/tool_capsule.h"
#include "bindings.h"
#include "flops/flops.h"
#include "flops/torch_operators.h"

namespace amanda::python {

namespace py = pybind11;
using tools::FlopCounts;
using tools::Flops;

namespace {

using Described = std::tuple<std::string, std::string, std::string, std::string, std::string>;

std::vector<tools::FlopsOperator> described(const std::vector<Described>& operators) {
  static const std::map<std::string, tools::FlopsFormula> formulas = {
      {"product", tools::FlopsFormula::kProduct},
      {"convolution", tools::FlopsFormula::kConvolution},
      {"transposed convolution", tools::FlopsFormula::kTransposedConvolution}};
  std::vector<tools::FlopsOperator> found;
  for (const auto& [name, formula, input, weight, layout] : operators) {
    found.push_back({name, formulas.at(formula), input, weight, layout});
  }
  return found;
}

}  // namespace

void bind_flops(py::module_& m) {
  py::class_<FlopCounts::Row>(m, "FlopRow", "All runs of one operator type in one module.")
      .def_readonly("op", &FlopCounts::Row::op)
      .def_readonly("module_path", &FlopCounts::Row::module_path)
      .def_readonly("backward", &FlopCounts::Row::backward)
      .def_readonly("runs", &FlopCounts::Row::runs)
      .def_readonly("flops", &FlopCounts::Row::flops);
  py::class_<FlopCounts, std::shared_ptr<FlopCounts>>(m, "FlopCounts", "What a Flops tool has counted so far.")
      .def("rows", &FlopCounts::rows)
      .def("total", &FlopCounts::total)
      .def("by_operator", &FlopCounts::by_operator)
      .def("by_module", &FlopCounts::by_module)
      .def("uncounted", &FlopCounts::uncounted)
      .def("uncounted_products", &FlopCounts::uncounted_products)
      .def("reset", &FlopCounts::reset);
  m.def(
      "flop_operators",
      [] {
        std::vector<std::string> names = Flops::operators();
        const auto& with_gradients = tools::operators_with_uncounted_gradients();
        names.insert(names.end(), with_gradients.begin(), with_gradients.end());
        return names;
      },
      "The operators that Flops counts, or lists as products that are not counted.");
  m.def("is_counting_flops", &Flops::is_open, "Is a Flops tool open on this thread?");
  m.def("count_flops", &Flops::count_in_replacement, py::arg("kernel"), py::arg("module_path"), py::arg("flops"),
        "Counts what a replacement runs, in all Flops tools that are open on this thread.");
  m.def(
      "make_flops",
      [](bool uncounted, bool cpu_attention, const std::vector<Described>& operators) {
        using Names = std::optional<std::vector<std::string>>;
        auto tool = std::make_unique<Flops>(tools::FlopsOptions{uncounted, cpu_attention, described(operators)});
        auto counts = tool->counts();
        auto narrow = [flops = tool.get()](const Names& ops, const Names& modules) {
          flops->narrow(ops ? OpFilter(*ops) : OpFilter(), modules ? ModuleFilter(*modules) : ModuleFilter());
        };
        return std::tuple(capsule_of(std::move(tool)), std::move(counts),
                          py::cpp_function(narrow, py::arg("ops"), py::arg("modules")));
      },
      py::arg("uncounted"), py::arg("cpu_attention"), py::arg("operators") = std::vector<Described>(),
      "The tool, what it counts, and a function that narrows it, which the tool must outlive. `operators`: of graphs, "
      "as "
      "(full name, formula, name of the input, name of the weight, the weight's layout).");
}

}  // namespace amanda::python
