"""DynamicQuantization: linear and recurrent layers on int8 kernels, which find the range of each input themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.ao.quantization import QConfig, default_dynamic_qconfig

from amanda import Operator
from amanda import ops as amanda_ops
from amanda.toolkit import Place, kernels
from amanda.toolkit.parameters import Operand

from .layers import PRODUCTS
from .post_training import PostTraining, refuse_gradients

CELLS = ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
quantized = torch.ops.quantized


class DynamicQuantization(PostTraining):
    """Runs linear and recurrent layers on PyTorch's int8 kernels, with no calibration and no change to the model::

        with amanda.apply(DynamicQuantization()), torch.no_grad():
            embeddings = model(**texts)

    Weights are quantized and packed when an operator first runs. The kernel quantizes each input with the range that it
    has in that call, multiplies integers, and returns floating point. Results are bit-equal to those of
    `torch.ao.quantization.quantize_dynamic`, which replaces modules. Here functions are quantized, too: `F.linear`, the
    projections of `nn.MultiheadAttention`, and products with a parameter (``x @ weight``, `torch.addmm`). Each expert of
    a mixture (`F.grouped_mm`, `torch.bmm`, with a parameter of three dimensions) is a layer of its own.

    Layers: `nn.Linear`; `nn.LSTM` and `nn.GRU` with biases and without projections; `nn.LSTMCell`, `nn.GRUCell` and
    `nn.RNNCell` with biases; recurrent ones in float32. Others, and products of activations, run as they are. A weight
    is packed again when it has changed: by an optimizer's step, `load_state_dict`, another tool. Writes through `.data`
    are not seen; call `reset()` after them. The floating-point weights stay in the model.

    Rows are by "id", one for each packed weight. See `Results` for `rows`, `table`, `to_pandas` and `reset`.

    Arguments:
        qconfig: its `weight` makes the observer of each weight. `per_channel_dynamic_qconfig` gives one scale per output.
        ops, where: see `PostTraining`.

    Raises:
        TypeError: `qconfig` is no `torch.ao.quantization.QConfig`, or `where` is not callable.
        ValueError: the weights of `qconfig` are not of dtype `torch.qint8`.
        amanda.Error: when an operator runs whose inputs require a gradient, with gradients enabled; when `ops` selects
            one that has no such kernel. Also when PyTorch runs an encoder layer as one operator, unless `ops` is given.
    """

    _kernels = ("linear", *PRODUCTS, "lstm", "gru", *CELLS)

    def __init__(self, qconfig: QConfig = default_dynamic_qconfig, **options: Any) -> None:
        super().__init__(qconfig, **options)

    def _run(self, *inputs: Any, op: Operator, place: Place) -> Any:
        if self._is_left(op, inputs):
            return op(*inputs)
        if op.__name__ in CELLS:
            return self._run_cell(*inputs, op=op, place=place)
        if op.__name__ in ("lstm", "gru"):
            return self._run_recurrent(*inputs, op=op, place=place)
        layer = self._layer(op, inputs)
        if layer is None:
            return self._run_experts(*inputs, op=op, place=place)
        refuse_gradients(place, inputs)
        weight = self._packed(place, amanda_ops.factors[op.__name__][1])
        packed = weight.pack(layer.weight, layer.bias, quantized.linear_prepack)
        return layer.run(lambda x: _linear(x, packed, place, layer.weight))

    def _run_experts(self, *inputs: Any, op: Operator, place: Place) -> Any:
        experts = self._experts(op, inputs)
        if experts is None:
            return op(*inputs)
        refuse_gradients(place, inputs)

        def run(i: int, x: torch.Tensor) -> torch.Tensor:
            weight = self._packed(place, f"{amanda_ops.factors[op.__name__][1]}[{i}]")
            packed = weight.pack(experts.layers[i].weight, None, quantized.linear_prepack)
            return _linear(x, packed, place, experts.layers[i].weight)

        return experts.run(run)

    def _weights(self, op: Operator, inputs: Sequence[Any]) -> Sequence[Operand]:
        named = dict(zip(op.input_names, inputs, strict=True))
        if op.__name__ in CELLS:
            parameters = inputs[2:]
            return ["w_ih", "w_hh"] if self._can_run(inputs[0], *parameters) else []
        if op.__name__ not in ("lstm", "gru"):
            return super()._weights(op, inputs)
        parameters = named["params"]
        if not _in_fours(named) or not self._can_run(inputs[0], *parameters):
            return []
        return [("params", i) for i in range(len(parameters)) if i % 4 < 2]  # two weights, two biases

    def _can_run(self, *tensors: torch.Tensor | None) -> bool:
        """As `_is_plain`, and counts nothing."""
        return all(
            tensor is not None and tensor.dtype is torch.float32 and not self._skips.is_unreadable(tensor)
            for tensor in tensors
        )

    def _run_cell(self, x: torch.Tensor, hx: Any, *parameters: Any, op: Operator, place: Place) -> Any:
        if not self._is_plain(x, *parameters):
            return op(x, hx, *parameters)
        refuse_gradients(place, (x, hx, *parameters))
        name = f"quantized_{op.__name__}_dynamic"
        kernel = getattr(quantized, name)
        kernels.ran_recurrent(f"quantized::{name}", place, x, parameters[:2])
        return kernel(x, hx, *self._pack_cell(place, ("w_ih", "w_hh"), *parameters))

    def _run_recurrent(self, *inputs: Any, op: Operator, place: Place) -> Any:
        named = dict(zip(op.input_names, inputs, strict=True))
        parameters = named["params"]
        if not _in_fours(named) or not self._is_plain(inputs[0], *parameters):
            return op(*inputs)
        refuse_gradients(place, inputs)
        cells = []
        for i in range(0, len(parameters), 4):
            packed = self._pack_cell(place, (f"params[{i}]", f"params[{i + 1}]"), *parameters[i : i + 4])
            cells.append(quantized.make_quantized_cell_params_dynamic(*packed, True))  # reduce_range
        options = {"dtype": torch.qint8, "use_dynamic": True} if op.__name__ == "lstm" else {}
        name = f"quantized_{op.__name__}"
        kernel = getattr(torch, name)
        weights = [parameter for parameter in parameters if parameter.dim() == 2]
        kernels.ran_recurrent(f"aten::{name}", place, inputs[0], weights)
        return kernel(*(named | {"params": cells}).values(), **options)

    def _pack_cell(
        self, place: Place, positions: tuple[str, str], w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any
    ) -> tuple[Any, ...]:
        """The parameters of a cell, with packed weights."""
        weights = zip(positions, (w_ih, w_hh), (b_ih, b_hh), strict=True)
        packed = [self._packed(place, at).pack(weight, bias, quantized.linear_prepack) for at, weight, bias in weights]
        return *packed, b_ih, b_hh

    def _is_plain(self, *tensors: torch.Tensor | None) -> bool:
        """True for what the recurrent kernels take."""
        return all(
            tensor is not None and tensor.dtype is torch.float32 and not self._skips.unreadable(tensor)
            for tensor in tensors
        )


def _linear(x: torch.Tensor, packed: Any, place: Place, weight: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = quantized.linear_dynamic(x, packed, reduce_range=True)
    kernels.ran_layer("quantized::linear_dynamic", place, result, weight)
    return result


def _in_fours(named: Mapping[str, Any]) -> bool:
    """True if a recurrent layer has weights and biases for each direction of each layer, and nothing else."""
    return bool(len(named["params"]) == 4 * named["num_layers"] * (1 + named["bidirectional"]))
