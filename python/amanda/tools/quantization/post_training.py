"""What DynamicQuantization and StaticQuantization have in common: layers that run on PyTorch's quantized kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch.ao.quantization import QConfig

from amanda import _core
from amanda import ops as amanda_ops
from amanda.op_context import OpContext
from amanda.reports.places import Place
from amanda.tools import _fused_layers
from amanda.tools._arrays import of_torch
from amanda.tools._where import Where
from amanda.tools.quantization.packed_weight import PackedWeight
from amanda.tools.quantization.rows import OperandPlace, Quantization

PRODUCTS = ("matmul", "mm", "addmm")  # layers, if the right factor is a parameter


class PostTraining(Quantization):
    """Base class of tools that run layers of a trained model on PyTorch's quantized kernels, without gradients.

    Arguments:
        qconfig: makes the observers of activations and weights, as for modules.
        ops: the operators to quantize, as in `Tool.add_inst_for_op`. None: all that the tool can quantize.
        where: called as ``where(context)`` once per operator; False leaves the operator as it is. If it is never True,
            leaving the scope warns (`UnmatchedFilterWarning`).

    Raises:
        TypeError: `qconfig` is no `torch.ao.quantization.QConfig`, or `where` is not callable.
        ValueError: the weights of `qconfig` are not of dtype `torch.qint8`.
    """

    _kernels: ClassVar[Sequence[str]]  # the operators that the tool can quantize

    def __init__(
        self,
        qconfig: QConfig,
        *,
        ops: str | Iterable[str] | None = None,
        where: Callable[[OpContext], object] = lambda context: True,
    ) -> None:
        super().__init__()
        if not isinstance(qconfig, QConfig):
            raise TypeError(f"[quantization] qconfig= takes a torch.ao.quantization.QConfig, got {qconfig!r}")
        if (dtype := qconfig.weight().dtype) is not torch.qint8:
            raise ValueError(
                f"[quantization] the kernels take weights of torch.qint8; those of this qconfig are {dtype}"
            )
        self.qconfig = qconfig
        self._where = Where(self._speaker, where)
        self.add_inst_for_op(self._analyze, ops=self._kernels if ops is None else ops)
        if ops is None:
            _fused_layers.refuse_in(self)

    def on_exit(self, error: BaseException | None) -> None:
        if error is None:
            self._where.tell(self)

    def _analyze(self, context: OpContext) -> None:
        op = context.op
        if op.__name__ not in self._kernels:
            raise _core.Error(
                f"[quantization] no kernel of {type(self).__name__} runs {op.name}; ops= takes {', '.join(self._kernels)}"
            )
        if not op.name.startswith("aten::"):
            return  # such as quantized::linear
        if op.__name__ in PRODUCTS:
            right = op.input_names.index(amanda_ops.factors[op.__name__][1])
            if not of_torch.is_parameter(context.inputs[right]):
                return
        if op.overload in ("", "padding", "input", "data") and self._where(context):  # not those with out=
            context.replace_op(self._run, op=op, place=Place.of(context))

    def _run(self, *inputs: Any, op: _core.Operator, place: Place) -> Any:
        raise NotImplementedError

    def _layer(self, op: _core.Operator, inputs: Sequence[Any]) -> Layer | None:
        layer = _layer_of(op, inputs)
        return None if layer is None or any(map(self._skips.unreadable, layer[:2])) else layer

    def _packed(self, place: Place, position: int | str) -> PackedWeight:
        at = OperandPlace(place, "input", position)
        return self._operand((place.op_id, *at[1:]), lambda: PackedWeight(at, self.qconfig.weight))


class Layer(NamedTuple):
    """The first dimension of the weight is that of the results."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None

    def run(self, kernel: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Calls `kernel`, which takes a batch of float32. The result has the dtype that the operator's would have."""
        alone = self.input.dim() < self.weight.dim()  # no batch
        found = kernel(self.input[None].float() if alone else self.input.float())
        casts = torch.is_autocast_enabled(self.input.device.type)
        dtype = torch.get_autocast_dtype(self.input.device.type) if casts else self.input.dtype
        return (found[0] if alone else found).to(dtype)


def refuse_gradients(place: Place, inputs: Iterable[Any]) -> None:
    """
    Raises:
        amanda.Error: a gradient is asked for.
    """
    if not torch.is_grad_enabled():
        return
    values = [value for one in inputs for value in (one if isinstance(one, (list, tuple)) else [one])]
    if any(isinstance(value, torch.Tensor) and value.requires_grad for value in values):
        raise _core.Error(
            f"[quantization] {place.name} ({place.source}) computes with integers, which have no gradient; run the model "
            "under torch.no_grad(), or train it with FakeQuantization"
        )


def _layer_of(op: _core.Operator, inputs: Sequence[Any]) -> Layer | None:
    """None: these inputs make no layer, such as two vectors, or ``alpha * x @ weight``."""
    if op.__name__ not in PRODUCTS:
        layer = Layer(*inputs[:3])
        return layer if layer.weight.dim() >= 2 and layer.weight.is_floating_point() else None
    bias, x, weight, *factors = inputs if op.__name__ == "addmm" else (None, *inputs)
    if weight.dim() != 2 or not weight.is_floating_point() or any(factor != 1 for factor in factors):
        return None
    return Layer(x, weight.t(), bias) if bias is None or bias.shape == weight.shape[1:] else None
