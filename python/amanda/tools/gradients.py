"""GradientStatistics: the norms of all gradients in training, before and after every backward operator."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Literal

import torch

from amanda import _fork
from amanda.op_context import OpContext
from amanda.reports.data_frame import data_frame, field_names
from amanda.tool import Tool
from amanda.tools import _reading

if TYPE_CHECKING:
    import pandas

Side = Literal["grad_output", "grad_input"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One gradient that one backward operator receives or returns, over all its runs.

    A norm is the Euclidean norm of all elements, accumulated in float64, in the unit of the gradient. `last` is the
    latest norm, including NaN and infinity. `min`, `max` and `mean` cover the finite norms; None if there was none.
    """

    op_id: int
    name: str  # the forward operator, "aten::linear"
    module_path: str
    source: str  # file:line of the forward call
    backward_op: str  # the autograd node, "AddmmBackward0"
    backward_op_id: int
    side: Side
    position: int  # the node's: grad_output of its i-th output, grad_input along its next_functions[i]
    calls: int  # runs of the backward operator
    undefined: int  # runs without this gradient: it is not needed, or it is zero
    nonfinite: int  # runs whose norm was NaN or infinite
    last: float | None
    min: float | None
    max: float | None
    mean: float | None
    skipped: int = 0  # runs whose gradient could not be read


class GradientStatistics(Tool):
    """Collects the norms of the gradients that flow into and out of every backward operator::

        gradients = GradientStatistics()
        with amanda.apply(gradients):
            train_one_epoch(model)
        table = gradients.to_pandas()
        table[table["backward_op"] == "AccumulateGrad"].sort_values("mean")  # of parameters, as they are accumulated

    Gradients that shrink towards the input vanish; gradients that grow explode. See Y. Bengio, P. Simard, P. Frasconi:
    Learning Long-Term Dependencies with Gradient Descent is Difficult, IEEE Transactions on Neural Networks 5(2), 1994.

    The tool changes nothing and keeps no gradient: memory grows with the program, not with its steps. On CUDA the host
    waits for each norm. For sparse, nested and other gradients without plain elements, only the calls are counted; they
    count as `skipped`. Rows are in the order in which backward operators first ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operators: dict[int, _BackwardOperator] = {}
        self._skips = _reading.Skips("gradients")
        self._lock = _fork.lock()  # guards the fields above
        self.add_inst_for_op(self._analyze, backward=True)

    def _analyze(self, context: OpContext) -> None:
        backward_op, backward_op_id = context.backward_op, context.backward_op_id
        operator = _BackwardOperator(
            context.op_id, context.op.name, context.module_path, context.source, backward_op.__name__, backward_op_id
        )
        with self._lock:
            operator = self._operators.setdefault(backward_op_id, operator)
        context.insert_before_backward_op(self._record_outputs, operator=operator)
        context.insert_after_backward_op(self._record_inputs, operator=operator)

    def _record_outputs(self, *gradients: torch.Tensor | None, operator: _BackwardOperator) -> None:
        norms = [self._norm_of(gradient) for gradient in gradients]
        with self._lock:
            operator.grad_outputs.add(norms)

    def _record_inputs(self, *gradients: torch.Tensor | None, operator: _BackwardOperator) -> None:
        norms = [self._norm_of(gradient) for gradient in gradients]
        with self._lock:
            operator.grad_inputs.add(norms)

    def _norm_of(self, gradient: torch.Tensor | None) -> float | Literal["skipped"] | None:
        if gradient is None:
            return None
        norm = self._skips.read(gradient, _norm_of)
        return "skipped" if norm is None else norm

    @property
    def skipped(self) -> dict[str, int]:
        """How many gradients could not be read, by reason."""
        return self._skips.counts()

    def rows(self) -> list[Row]:
        """The norms so far, in the order in which the backward operators first ran."""
        with self._lock:
            return [row for operator in self._operators.values() for row in operator.rows()]

    def to_pandas(self) -> pandas.DataFrame:
        """`rows` as a data frame with a column for each field; None becomes a missing value.

        Raises:
            ImportError: pandas is not installed.
        """
        ids: dict[str, str] = dict.fromkeys(("op_id", "backward_op_id"), "uint64")
        counts: dict[str, str] = dict.fromkeys(("position", "calls", "undefined", "nonfinite", "skipped"), "int64")
        norms: dict[str, str] = dict.fromkeys(("last", "min", "max", "mean"), "float64")
        return data_frame("gradients", self.rows(), field_names(Row), ids | counts | norms)


@dataclasses.dataclass(eq=False)
class _Norms:
    """The norms of one gradient."""

    undefined: int = 0
    skipped: int = 0
    nonfinite: int = 0
    finite: int = 0
    last: float | None = None
    min: float = math.inf
    max: float = -math.inf
    sum: float = 0.0

    def add(self, norm: float) -> None:
        self.last = norm
        if not math.isfinite(norm):
            self.nonfinite += 1
            return
        self.finite += 1
        self.min, self.max, self.sum = min(self.min, norm), max(self.max, norm), self.sum + norm


@dataclasses.dataclass(eq=False)
class _Gradients:
    """The gradients on one side of a backward operator."""

    calls: int = 0
    norms: list[_Norms] = dataclasses.field(default_factory=list)

    def add(self, norms: list[float | Literal["skipped"] | None]) -> None:
        self.calls += 1
        self.norms = self.norms or [_Norms() for _ in norms]
        for known, norm in zip(self.norms, norms, strict=True):
            if norm is None:
                known.undefined += 1
            elif norm == "skipped":
                known.skipped += 1
            else:
                known.add(norm)


@dataclasses.dataclass(eq=False)
class _BackwardOperator:
    op_id: int
    name: str
    module_path: str
    source: str
    backward_op: str
    backward_op_id: int
    grad_outputs: _Gradients = dataclasses.field(default_factory=_Gradients)
    grad_inputs: _Gradients = dataclasses.field(default_factory=_Gradients)

    def rows(self) -> list[Row]:
        sides: list[tuple[Side, _Gradients]] = [("grad_output", self.grad_outputs), ("grad_input", self.grad_inputs)]
        return [
            Row(
                op_id=self.op_id,
                name=self.name,
                module_path=self.module_path,
                source=self.source,
                backward_op=self.backward_op,
                backward_op_id=self.backward_op_id,
                side=side,
                position=position,
                calls=gradients.calls,
                undefined=norms.undefined,
                nonfinite=norms.nonfinite,
                last=norms.last,
                min=norms.min if norms.finite else None,
                max=norms.max if norms.finite else None,
                mean=norms.sum / norms.finite if norms.finite else None,
                skipped=norms.skipped,
            )
            for side, gradients in sides
            for position, norms in enumerate(gradients.norms)
        ]


def _norm_of(gradient: torch.Tensor) -> float:
    if not (gradient.is_floating_point() or gradient.is_complex()):
        gradient = gradient.double()  # a torch.autograd.Function may return integers
    dtype = torch.complex128 if gradient.is_complex() else torch.float64
    return float(torch.linalg.vector_norm(gradient, dtype=dtype))
