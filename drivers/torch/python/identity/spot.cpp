#include "python/identity/spot.h"

#include <string_view>

#include "python/identity/deaths.h"
#include "python/identity/place_rules.h"
#include "python/identity/text.h"

namespace amanda::python {
namespace {

namespace py = pybind11;

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

py::object called(const py::object& function, PyCodeObject* code, int offset) {
  return function(py::handle(reinterpret_cast<PyObject*>(code)), offset);
}

// The result of frames.position_of() as Python shows it; and the first line, 0 if it has no columns.
std::pair<std::string, int> position_of(PyCodeObject* code, int offset) {
  int line = -1, column = -1, last_line = -1, last_column = -1;
  PyCode_Addr2Location(code, offset, &line, &column, &last_line, &last_column);
  std::string text;
  for (const int number : {line, last_line, column, last_column}) {
    if (number < 0) return {std::string(view(py::repr(called(rules().position_of, code, offset)))), 0};
    text += text.empty() ? "(" : ", ";
    text += std::to_string(number);
  }
  return {text + ")", line};
}

}  // namespace

SpotCode::SpotCode(PyCodeObject* code, const py::object& python_module)
    : module_(rules().name_of_module(python_module)),
      filename_(py::reinterpret_borrow<py::object>(code->co_filename)),
      function_(py::reinterpret_borrow<py::object>(code->co_qualname)),
      is_machinery_(rules().is_machinery(filename_).cast<bool>()),
      lends_(reinterpret_cast<PyObject*>(code) == rules().functional_call.ptr()) {
  const std::string file = encodable(filename_);
  is_checkpoint_ = file == rules().checkpoint_file;
  is_torchs_ = is_machinery_ || starts_with(file, rules().torch_folder);
  is_graphs_ = starts_with(file, rules().graph_file);
  watch(reinterpret_cast<PyObject*>(code), Watch::kAddress);
}

const std::string& SpotCode::text() {
  if (text_.empty()) {
    const py::tuple file = rules().file_of(module_, filename_);
    std::string text(view(py::repr(py::make_tuple(file[0], file[1], function_))));
    text.back() = ',';  // its bracket
    text_ = std::move(text);
  }
  return text_;
}

Spot::Spot(std::shared_ptr<SpotCode> in, PyCodeObject* code, int offset, const py::object& graph_module)
    : code_(std::move(in)) {
  auto [position, line] = position_of(code, offset);
  position_ = std::move(position);
  if (code_->is_torchs()) return;
  if (line == 0) line = called(rules().line_of, code, offset).cast<int>();
  source_ = encodable(code_->filename()) + ":" + std::to_string(line);
  if (!code_->is_graphs() || !graph_module || graph_module.is_none()) return;
  const py::tuple traced =  // "" for what is not known
      rules().traced_place(graph_module, py::handle(reinterpret_cast<PyObject*>(code)), line);
  traced_ = encodable(traced[0]);
  if (std::string source = encodable(traced[1]); !source.empty()) source_ = std::move(source);
  runs_region_ = traced[2].cast<bool>();
}

PathStep Spot::part() const {
  return {.text = text_,
          .source = source_,
          .traced = traced_,
          .runs_region = runs_region_,
          .is_checkpoint = code_->is_checkpoint(),
          .is_machinery = code_->is_machinery()};
}

void Spot::make_text() {
  if (text_.empty()) text_ = code_->text() + " " + position_ + ")";
}

}  // namespace amanda::python
