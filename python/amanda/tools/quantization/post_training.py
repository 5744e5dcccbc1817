"""The common base of DynamicQuantization and StaticQuantization: layers that run on PyTorch's quantized kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch.ao.quantization import QConfig

from amanda import Error, OpContext, Operator
from amanda import ops as amanda_ops
from amanda.toolkit import Place, Where, frameworks, fused_layers
from amanda.toolkit.arrays import of_torch
from amanda.toolkit.frames import line_in_cell
from amanda.toolkit.parameters import Operand

from .layers import PRODUCTS, Experts, Layer, experts_of, layer_of
from .packed_weight import PackedWeight
from .rows import OperandPlace, Quantization


class PostTraining(Quantization):
    """Base class of tools that run layers of a trained model on PyTorch's quantized kernels, without gradients.

    Arguments:
        qconfig: makes the observers of activations and weights, as for modules.
        ops: the operators to quantize, as in `Tool.add_inst_for_op`. None selects all that the tool can quantize.
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
        self.add_inst_for_op(self._analyze, ops=self._kernels if ops is None else ops, optional=ops is None)
        if ops is None:
            fused_layers.refuse_in(self)

    def on_exit(self, error: BaseException | None) -> None:
        if error is None:
            self._where.tell(self)
            if not self._where.refuses_all:
                self._parameters.tell(self)

    def _analyze(self, context: OpContext) -> None:
        op = context.op
        if frameworks.leaves_out(context, self._skips, "pytorch"):
            return
        self._parameters.asked(context)
        if op.__name__ not in self._kernels:
            raise Error(
                f"[quantization] no kernel of {type(self).__name__} runs {op.name}; ops= takes {', '.join(self._kernels)}"
            )
        if not op.name.startswith("aten::"):
            return  # such as quantized::linear
        if op.__name__ in PRODUCTS:
            right = op.input_names.index(amanda_ops.factors[op.__name__][1])
            if not of_torch.is_parameter(context.inputs[right]):
                return
        if op.overload in ("", "padding", "input", "data") and self._where(context):  # not those with out=
            weights = self._weights(op, context.inputs)
            if weights:
                self._parameters.handled(context, *weights)
            context.replace_op(self._run, op=op, place=Place.of(context))

    def _run(self, *inputs: Any, op: Operator, place: Place) -> Any:
        raise NotImplementedError

    def _layer(self, op: Operator, inputs: Sequence[Any]) -> Layer | None:
        layer = layer_of(op, inputs)
        return None if layer is None or any(map(self._skips.unreadable, layer[:2])) else layer

    def _experts(self, op: Operator, inputs: Sequence[Any]) -> Experts | None:
        """The layers of an operator that is not one layer; None if there are none that can be read."""
        if op.__name__ not in PRODUCTS or any(map(self._skips.unreadable, inputs[:2])):
            return None
        return experts_of(op, inputs)

    def _is_left(self, op: Operator, inputs: Sequence[Any]) -> bool:
        """Returns True, and counts it, if the kernels can't run for a transformation: they have no tangents, and take one
        weight."""
        if not of_torch.is_transforming():
            return False
        left = amanda_ops.factors.get(op.__name__, ("input",))[0]
        named = list(zip(op.input_names, map(_tensors_in, inputs), strict=True))
        if any(of_torch.has_tangent(tensor) for _, tensors in named for tensor in tensors):
            self._skips.add("tangent")
            return True
        weights = [tensor for name, tensors in named if name not in (left, "hx") for tensor in tensors]
        return any(map(self._skips.is_several, weights))

    def _weights(self, op: Operator, inputs: Sequence[Any]) -> Sequence[Operand]:
        """The inputs that run quantized."""
        name = amanda_ops.factors[op.__name__][1]
        x, weight = (inputs[op.input_names.index(each)] for each in amanda_ops.factors[op.__name__])
        if self._skips.is_unreadable(x) or self._skips.is_unreadable(weight):
            return []
        return [name] if layer_of(op, inputs) is not None or experts_of(op, inputs) is not None else []

    def _packed(self, place: Place, position: int | str) -> PackedWeight:
        at = OperandPlace(place, "input", position)
        return self._operand((place.op_id, *at[1:]), lambda: PackedWeight(at, self.qconfig.weight))


def refuse_gradients(place: Place, inputs: Iterable[Any]) -> None:
    """
    Raises:
        amanda.Error: a gradient is asked for.
    """
    if not torch.is_grad_enabled():
        return
    if any(tensor.requires_grad for one in inputs for tensor in _tensors_in(one)):
        raise Error(
            f"[quantization] {place.name} ({line_in_cell(place.source)}) computes with integers, which have no "
            "gradient; run the model under torch.no_grad(), or train it with FakeQuantization"
        )


def _tensors_in(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, torch.Tensor)]
