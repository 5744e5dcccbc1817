#include "python/recording.h"

#include "dispatch/call_recorder.h"
#include "python/bridge.h"

namespace amanda::python {
namespace {

class PythonRecorder final : public pytorch::CallRecorder {
 public:
  PythonRecorder(TorchBridge& bridge, const py::object& see) : bridge_(bridge), see_(see) {}

  void record(pytorch::ForwardCall& call) override {
    const OpInfo& info = call.record().info;
    py::gil_scoped_acquire gil;
    const py::object after = see_(info.ns, info.name, info.overload, shown(call, Side::kInputs));
    {
      py::gil_scoped_release no_gil;
      call.run({});
    }
    if (!after.is_none()) after(shown(call, Side::kOutputs), call.result_is_view());
  }

 private:
  py::tuple shown(pytorch::ForwardCall& call, Side side) {
    py::tuple operands(call.size(side));
    for (size_t i = 0; i < operands.size(); ++i) {
      operands[i] = py::reinterpret_steal<py::object>(bridge_.to_python(call, side, i));
    }
    return operands;
  }

  TorchBridge& bridge_;
  const py::object& see_;
};

}  // namespace

py::object record_calls(TorchBridge& bridge, const py::object& see, const py::object& function, const py::tuple& args,
                        const py::dict& kwargs) {
  PythonRecorder recorder(bridge, see);
  const pytorch::Recording recording(recorder);
  return function(*args, **kwargs);
}

}  // namespace amanda::python
