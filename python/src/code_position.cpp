// The position of an instruction in the source. `co_positions()` would make a tuple for each instruction before it.
#include "module.h"

namespace amanda::python {
namespace {

py::object shown(int number) { return number < 0 ? py::object(py::none()) : py::int_(number); }

}  // namespace

void bind_code_position(py::module_& m) {
  m.def(
      "position_at",
      [](const py::object& code, int offset) {
        if (!PyCode_Check(code.ptr())) throw py::type_error("[identity] position_at takes a code object");
        int line = -1, column = -1, last_line = -1, last_column = -1;
        PyCode_Addr2Location(reinterpret_cast<PyCodeObject*>(code.ptr()), offset, &line, &column, &last_line,
                             &last_column);
        return py::make_tuple(shown(line), shown(last_line), shown(column), shown(last_column));
      },
      py::arg("code"), py::arg("offset"),
      "First and last line, first and last column of the instruction at this offset, as `co_positions()` has them.");
}

}  // namespace amanda::python
