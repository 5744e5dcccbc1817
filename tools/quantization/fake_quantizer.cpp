#include "quantization/fake_quantizer.h"

#include <optional>
#include <utility>

#include "amanda/routine_capsule.h"
#include "quantization/fake_quantize.h"
#include "torch_bindings.h"
#include "values/tensors.h"

namespace amanda::tools::pytorch {

void FakeQuantizer::follow(std::shared_ptr<MovingRange> range, uint64_t generation) {
  followed_ = std::make_shared<const Followed>(std::move(range), generation);
}

bool FakeQuantizer::operator()(Values& values) const {
  const std::shared_ptr<const Followed> followed = followed_;
  if (!followed || followed->generation != state_->generation) return false;
  const c10::IValue& operand = amanda::pytorch::ivalue(values[0]);
  if (!operand.isTensor() || !operand.toTensor().defined() || !is_readable(operand.toTensor())) return false;
  const at::Tensor value = operand.toTensor();
  if (!value.is_floating_point() || is_transforming() || has_tangent(value)) return false;
  MovingRange& range = *followed->range;
  const QuantizationParametersPtr parameters = state_->observe ? range.look_at(value) : range.parameters();
  if (!parameters) return false;
  if (state_->quantize) amanda::pytorch::set(values, 0, fake_quantize(value, *parameters, range.options()));
  return true;
}

void bind_fake_quantization(pybind11::module_& m) {
  namespace py = pybind11;
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<MovingRange, std::shared_ptr<MovingRange>>(m, "MovingRange",
                                                        "Continues, in its buffers, what an observer has begun.")
      .def(py::init([](at::Tensor min, at::Tensor max, double averaging_constant, int64_t quant_min, int64_t quant_max,
                       bool symmetric, bool by_channel, double eps) {
             return std::make_shared<MovingRange>(
                 std::move(min), std::move(max),
                 RangeOptions{averaging_constant, quant_min, quant_max, symmetric, by_channel, eps});
           }),
           py::arg("min"), py::arg("max"), py::arg("averaging_constant"), py::arg("quant_min"), py::arg("quant_max"),
           py::arg("symmetric"), py::arg("by_channel"), py::arg("eps"))
      .def(
          "look_at", [](MovingRange& range, const at::Tensor& value) { return range.look_at(value) != nullptr; },
          py::arg("value"), Unlocked(), "Includes the value; False: the observer itself must look at it.")
      .def(
          "qparams",
          [](const MovingRange& range) -> std::optional<std::pair<at::Tensor, at::Tensor>> {
            const QuantizationParametersPtr parameters = range.parameters();
            if (!parameters) return std::nullopt;
            return tensors_of(*parameters);
          },
          Unlocked(), "Scale and zero point; None: the observer must be asked.")
      .def(
          "fake_quantized",
          [](const MovingRange& range, const at::Tensor& value) -> std::optional<at::Tensor> {
            const QuantizationParametersPtr parameters = range.parameters();
            if (!parameters) return std::nullopt;
            return fake_quantize(value, *parameters, range.options());
          },
          py::arg("value"), Unlocked(), "The value after quantization; None: the observer must be asked.")
      .def("retire", &MovingRange::retire, Unlocked(), "The observer goes on by itself.");
  py::class_<FakeQuantizationState, std::shared_ptr<FakeQuantizationState>>(m, "FakeQuantizationState",
                                                                            "What all operands of a tool share.")
      .def(py::init())
      .def_property(
          "observe", [](const FakeQuantizationState& state) { return state.observe.load(); },
          [](FakeQuantizationState& state, bool value) { state.observe = value; })
      .def_property(
          "quantize", [](const FakeQuantizationState& state) { return state.quantize.load(); },
          [](FakeQuantizationState& state, bool value) { state.quantize = value; })
      .def(
          "forget", [](FakeQuantizationState& state) { ++state.generation; }, "No range is followed any more.");
  py::class_<FakeQuantizer, std::shared_ptr<FakeQuantizer>>(m, "FakeQuantizer", "Quantizes an operand in C++.")
      .def(py::init([](std::shared_ptr<FakeQuantizationState> state) {
             return std::make_shared<FakeQuantizer>(std::move(state));
           }),
           py::arg("state"))
      .def_property_readonly("generation", &FakeQuantizer::generation)
      .def("follow", &FakeQuantizer::follow, py::arg("range").none(false), py::arg("generation"))
      .def(
          "routine",
          [](const std::shared_ptr<FakeQuantizer>& quantizer) {
            return python::capsule_of([quantizer](Values& values) { return (*quantizer)(values); });
          },
          "A routine for `_core.NativeRoutine`. It declines until it follows a range, and where that can't be done.");
}

}  // namespace amanda::tools::pytorch
