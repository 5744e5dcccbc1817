"""StaticQuantization: layers on int8 kernels, with ranges that were found on sample data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.ao.quantization import QConfig
from torch.ao.quantization.observer import (
    HistogramObserver,
    UniformQuantizationObserverBase,
    default_per_channel_weight_observer,
)

from amanda import Error, Operator
from amanda import ops as amanda_ops
from amanda.toolkit import Place, kernels

from .layers import PRODUCTS, Experts
from .observed import Observed
from .post_training import PostTraining, refuse_gradients
from .rows import OperandPlace, Side

quantized = torch.ops.quantized
default_static_qconfig = QConfig(
    activation=HistogramObserver.with_args(quant_min=0, quant_max=127), weight=default_per_channel_weight_observer
)


class StaticQuantization(PostTraining):
    """Runs linear layers and convolutions on PyTorch's int8 kernels, with ranges found by calibration::

        quantization = StaticQuantization()
        with amanda.apply(quantization), torch.no_grad():
            for batch in sample:
                model(batch)
            quantization.convert()
            evaluate(model)

    Before `convert`, the model computes as without the tool, and observers see the input and the output of each layer.
    From then on each layer quantizes its input, computes with integers, and returns floating point. Results are
    bit-equal to those of `torch.ao.quantization.prepare` and `convert` on a model with a QuantStub before and a
    DeQuantStub after each layer. Layers need not be modules: `F.linear`, ``x @ weight`` and `torch.addmm` count. So do the
    experts of a mixture (`F.grouped_mm`, `torch.bmm`, with a parameter of three dimensions): each has its own weight; their
    inputs have one range, and so have their outputs.

    Observers and packed weights belong to the tool and persist across scopes. A weight is packed again when it has
    changed; writes through `.data` are not seen. The floating-point weights stay in the model. Products of activations,
    transposed convolutions, and tensors that cannot be read (these count in `skipped`) run as without the tool.

    Rows are by "id", one for each input, weight and output that is quantized. See `Results` for `rows`, `table`,
    `to_pandas` and `reset`. After `reset` the tool calibrates anew.

    Arguments:
        qconfig: makes the observers of activations and weights. The default is that of PyTorch for x86: histograms and 7
            bits for activations, because sums of 8-bit products saturate on older CPUs, and one scale per output channel
            for weights.
        ops, where: see `PostTraining`.

    Attributes:
        converted: False until `convert`, and after `reset`.

    Raises:
        TypeError: `qconfig` is no `torch.ao.quantization.QConfig`, or `where` is not callable.
        ValueError: the weights of `qconfig` are not of dtype `torch.qint8`, or its activations are not observed, or not of
            dtype `torch.quint8`, with one scale.
        amanda.Error: when a layer runs that was not calibrated, or whose inputs require a gradient, with gradients
            enabled; when `ops` selects an operator that has no such kernel. Also when PyTorch runs an encoder layer as
            one operator, unless `ops` is given.
    """

    _kernels = ("linear", *PRODUCTS, *amanda_ops.convolution)

    def __init__(self, qconfig: QConfig = default_static_qconfig, **options: Any) -> None:
        super().__init__(qconfig, **options)
        observer = qconfig.activation()
        if (
            not isinstance(observer, UniformQuantizationObserverBase)
            or observer.dtype is not torch.quint8
            or observer.qscheme not in (torch.per_tensor_affine, torch.per_tensor_symmetric)
        ):
            raise ValueError(
                "[quantization] activations need an observer that finds one range for dtype torch.quint8, such as "
                f"MinMaxObserver; got {observer}"
            )
        self.converted = False

    def convert(self) -> None:
        """Ends the calibration: from here on layers run on integers, with the ranges seen so far.

        Raises:
            amanda.Error: no layer has run yet.
        """
        if not self.rows():
            raise Error(
                "[quantization] nothing is calibrated: run the model on sample data in a scope of this tool first"
            )
        self.converted = True

    def reset(self) -> None:
        super().reset()
        self.converted = False

    def _run(self, *inputs: Any, op: Operator, place: Place) -> Any:
        layer = self._layer(op, inputs) or self._experts(op, inputs)
        if layer is None:
            return op(*inputs)
        left, right = amanda_ops.factors[op.__name__]
        input_range, output_range = self._observed(place, "input", left), self._observed(place, "output", 0)
        if not self.converted:
            output = op(*inputs)
            input_range.look_at(inputs[op.input_names.index(left)])
            output_range.look_at(output)
            return output
        if self._is_left(op, inputs):
            return op(*inputs)
        refuse_gradients(place, inputs)
        advice = (
            "before convert(), run data that reaches it, through the same function if it is in no module (amanda.root), or "
            "leave it out with where="
        )
        scale, zero_point = input_range.qparams(advice)
        results = [number.item() for number in output_range.qparams(advice)]
        if isinstance(layer, Experts):
            return self._run_experts(layer, place, right, (scale, zero_point), results)
        weight = self._packed(place, right)
        if op.__name__ in amanda_ops.convolution:
            kernel, prepack = getattr(quantized, op.__name__), getattr(quantized, f"{op.__name__}_prepack")
            margin, padding = _padding(layer.weight, *inputs[4:6])
            packed = weight.pack(layer.weight, layer.bias, prepack, inputs[3], padding, *inputs[5:])
        else:
            kernel, margin = quantized.linear, []
            packed = weight.pack(layer.weight, layer.bias, quantized.linear_prepack)

        name = op.__name__ if op.__name__ in amanda_ops.convolution else "linear"

        def run(x: torch.Tensor) -> torch.Tensor:
            x = torch.quantize_per_tensor(F.pad(x, margin), scale, zero_point, torch.quint8)
            result = kernel(x, packed, *results).dequantize()
            kernels.ran_layer(f"quantized::{name}", place, result, layer.weight)
            return result

        return layer.run(run)

    def _run_experts(
        self, experts: Experts, place: Place, right: str, of_input: tuple[Any, Any], of_output: Sequence[Any]
    ) -> torch.Tensor:
        def run(i: int, x: torch.Tensor) -> torch.Tensor:
            weight = experts.layers[i].weight
            packed = self._packed(place, f"{right}[{i}]").pack(weight, None, quantized.linear_prepack)
            x = torch.quantize_per_tensor(x, *of_input, torch.quint8)
            result: torch.Tensor = quantized.linear(x, packed, *of_output).dequantize()
            kernels.ran_layer("quantized::linear", place, result, weight)
            return result

        return experts.run(run)

    def _observed(self, place: Place, side: Side, position: int | str) -> Observed:
        at = OperandPlace(place, side, position)
        return self._operand((place.op_id, side, position), lambda: Observed(at, self.qconfig.activation()))


def _padding(weight: torch.Tensor, padding: list[int] | str, dilation: list[int]) -> tuple[list[int], list[int]]:
    """The padding before a convolution, as F.pad takes it, and the padding that the kernel adds on both sides."""
    if not isinstance(padding, str):
        return [], padding
    none = [0] * len(dilation)
    if padding == "valid":
        return [], none
    total = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
    return [pad for both in reversed(total) for pad in (both // 2, both - both // 2)], none
