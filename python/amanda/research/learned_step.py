"""LearnedStepQuantization: quantization-aware training in which the step sizes are trained, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

from amanda import Error, OpContext
from amanda import ops as amanda_ops
from amanda.toolkit import Place, Where, frameworks, fused_layers
from amanda.toolkit.arrays import of_torch
from amanda.tools.quantization.rows import OperandPlace, Quantization, Row

OPS = (*amanda_ops.linear, *amanda_ops.convolution, "_grouped_mm")


class LearnedStepQuantization(Quantization):
    """Rounds both factors of products to a few bits, with a step size for each that is a parameter::

        quantization = LearnedStepQuantization(bits=3)
        with amanda.apply(quantization):
            model(batch)  # makes the step sizes
            optimizer = torch.optim.SGD([*model.parameters(), *quantization.parameters()], lr=0.01)
            train(model, optimizer)

    LSQ. S. Esser, J. McKinstry, D. Bablani, R. Appuswamy, D. Modha: Learned Step Size Quantization, ICLR 2020. A value v
    becomes ``round(clip(v / s, low, high)) * s``, where s is the step size. The integers low to high are
    ``-2**(bits - 1)`` to ``2**(bits - 1) - 1`` if signed, otherwise 0 to ``2**bits - 1``. Rounding passes gradients on,
    and clipping passes those of values in range. So the gradient of s is the sum, over the elements, of the gradient
    that arrives times ``round(v / s) - v / s`` in range, and times low or high outside; scaled by
    ``1 / sqrt(N * high)``. N is the number of elements of a weight, or of one sample (along the first dimension) of an
    activation. s starts at ``2 * mean(abs(v)) / sqrt(high)`` of the first value.

    Weights are signed: the argument named `weight`, and factors that are parameters. Step sizes belong to the tool and
    to a place in the program, `context.op_id`, and persist across scopes. They are float32, and so is the computation;
    the result has the operand's dtype. For other bits in the first and last layers, as in the paper, apply two tools,
    each with its `where`. Under distributed training each rank has its own step sizes.

    Rows are by "id", one for each operand, in the order in which they first ran. See `Results` for `rows`, `table`,
    `to_pandas` and `reset`. After `reset` all step sizes are new.

    Arguments:
        bits: 2 to 16.
        ops: the products to quantize: names of `amanda.ops.factors`.
        where: called as ``where(context)`` once per operator; False leaves the operator as it is. If it is never True,
            leaving the scope warns (`UnmatchedFilterWarning`).
        signed: whether activations are signed. With None, those are signed whose first value has negative elements.

    Raises:
        TypeError: `where` is not callable.
        ValueError: `bits` is not an integer in that range, or `ops` has a name that is no product.
        amanda.Error: if linear layers are selected, when PyTorch runs an encoder layer as one operator in evaluation.
    """

    def __init__(
        self,
        bits: int = 8,
        *,
        ops: Iterable[str] = OPS,
        where: Callable[[OpContext], object] = lambda context: True,
        signed: bool | None = None,
    ) -> None:
        super().__init__()
        names = [ops] if isinstance(ops, str) else list(ops)
        if not isinstance(bits, int) or not 2 <= bits <= 16:
            raise ValueError(f"[quantization] bits= is an integer from 2 to 16; got {bits!r}")
        if unknown := [name for name in names if name not in amanda_ops.factors]:
            raise ValueError(
                f"[quantization] the factors of {unknown[0]!r} are not known; ops= takes {', '.join(amanda_ops.factors)}"
            )
        self.bits = bits
        self._where = Where(self._speaker, where)
        self._signed = signed
        self.add_inst_for_op(self._analyze, ops=names)
        if "linear" in names:
            fused_layers.refuse_in(self)

    def parameters(self) -> list[torch.nn.Parameter]:
        """The step sizes, for an optimizer, in the order of `rows`.

        Raises:
            amanda.Error: there are none yet.
        """
        with self._lock:
            found = [operand.size for operand in self._operands.values() if isinstance(operand, _Step)]
        if not found:
            raise Error("[quantization] no step sizes yet: run the model once in a scope of this tool first")
        return found

    def on_exit(self, error: BaseException | None) -> None:
        if error is None:
            self._where.tell(self)
            if not self._where.refuses_all:
                self._parameters.tell(self)

    def _analyze(self, context: OpContext) -> None:
        if frameworks.leaves_out(context, self._skips, "pytorch"):
            return
        self._parameters.asked(context)
        if not context.op.name.startswith("aten::") or not self._where(context):
            return
        if context.is_symbolic and torch.is_grad_enabled() and not context.outputs[0].requires_grad:
            raise Error(
                f"[quantization] step sizes of {context.op.name} get no gradient in a compiled function, as none of its "
                'operands requires one; apply the tool with compiled="eager", or call the function under torch.no_grad()'
            )
        for name in amanda_ops.factors[context.op.__name__]:
            value: Any = context.inputs[context.op.input_names.index(name)]
            at = OperandPlace(Place.of(context), "input", name)
            is_weight = name == "weight" or of_torch.is_parameter(value)
            if is_weight and value.is_floating_point() and not self._skips.is_unreadable(value):
                self._parameters.handled(context, name)
            context.insert_before_op(self._round, [name], differentiable=True, at=at, is_weight=is_weight)

    def _round(self, value: torch.Tensor, at: OperandPlace, is_weight: bool) -> torch.Tensor | None:
        if not value.is_floating_point() or not value.numel() or self._skips.unreadable(value):
            return None
        step = self._operand((at.place.op_id, at.position), lambda: self._make_step(value, at, is_weight))
        return step.round(value)

    def _make_step(self, value: torch.Tensor, at: OperandPlace, is_weight: bool) -> _Step:
        first = of_torch.plain(value).detach().float()
        signed = is_weight or (bool((first < 0).any()) if self._signed is None else self._signed)
        low, high = (-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1) if signed else (0, 2**self.bits - 1)
        size = (2 * first.abs().mean() / high**0.5).clamp_min(torch.finfo(torch.float32).eps)  # zeros have a step, too
        return _Step(at, torch.nn.Parameter(size), low, high, is_weight)


@dataclasses.dataclass(eq=False)
class _Step:
    at: OperandPlace
    size: torch.nn.Parameter
    low: int
    high: int
    is_weight: bool

    def round(self, value: torch.Tensor) -> torch.Tensor:
        count = value.numel() if self.is_weight or value.dim() < 2 else value[0].numel()
        size = _with_gradient_of(self.size, self.size * (count * self.high) ** -0.5)
        scaled = (value.float() / size).clamp(self.low, self.high)
        return (_with_gradient_of(scaled.round(), scaled) * size).to(value.dtype)

    def row(self) -> Row:
        scale = self.size.detach().clone()
        zero_point = torch.zeros((), dtype=torch.int32)
        return Row(*self.at.place, self.at.side, self.at.position, scale, zero_point, self.low, self.high)


def _with_gradient_of(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (value - other).detach() + other
