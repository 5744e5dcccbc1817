"""GradientStatistics: the norms of all gradients in training, before and after every backward operator."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from amanda import OpContext, Tool
from amanda.toolkit import GroupBy, NativeRoutine, Place, PlaceRow, Skips, TellsSkips, locks, natively, place_groupings
from amanda.toolkit.loss_scaling import LossScaling
from amanda.toolkit.tables import Column, Results, general_column, number_column

Side = Literal["grad_output", "grad_input"]


@dataclasses.dataclass(frozen=True)
class Row(PlaceRow):
    """One gradient that one backward operator receives or returns, over all its runs.

    By "op" a row is that gradient of all backward operators of a type; by "module" and "line" all gradients that the
    backward operators there receive, or return. `name` and the place are those of the forward operator.

    A norm is the Euclidean norm of all elements, accumulated in float64, in the unit of the gradient. `last` is the
    latest norm, including NaN and infinity. `min`, `max` and `mean` cover the finite norms; None if there was none.
    """

    backward_op: str  # the autograd node, "AddmmBackward0", by "id" and "op"; else ""
    backward_op_id: int | None  # by "id"; else None
    side: Side
    position: int | None  # the node's: grad_output of its i-th output, grad_input along its next_functions[i]
    calls: int  # runs of the backward operator, or of all of the row
    undefined: int  # runs without this gradient: it is not needed, or it is zero
    nonfinite: int  # runs whose norm was NaN or infinite
    last: float | None  # by "id"; else None
    min: float | None
    max: float | None
    mean: float | None
    skipped: int = 0  # runs whose gradient could not be read


class GradientStatistics(TellsSkips, Results[Row, GroupBy], Tool):
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
    count as `skipped`.

    Under ``torch.amp.GradScaler`` they are the gradients of the scaled loss, as they flow: `loss_scales` has the factors,
    and tables name them. `History` divides by them.

    Rows are by "id" (the default: one backward operator at its place in the program), "op", "module" or "line", in the
    order in which the backward operators first ran. See `Results` for `rows`, `table`, `to_pandas` and `reset`.
    """

    _speaker = "gradients"

    def __init__(self) -> None:
        super().__init__()
        self._operators: dict[int, _BackwardOperator] = {}  # whose gradients were read in Python
        self._recorder: Any = None  # of those whose gradients were read in C++
        self._nodes: dict[int, _Node] = {}  # of these
        self._skips = Skips("gradients")
        self._lock = locks.lock()  # guards the fields above
        self._loss_scaling = LossScaling()
        self.depends_on(self._loss_scaling)
        self.add_inst_for_op(self._analyze, backward=True)

    def _analyze(self, context: OpContext) -> None:
        backward_op, backward_op_id = context.backward_op, context.backward_op_id
        node = _Node(Place.of(context), backward_op.__name__, backward_op_id)
        native = natively(context)
        if native is None:
            context.insert_before_backward_op(self._record_outputs, node=node)
            context.insert_after_backward_op(self._record_inputs, node=node)
            return
        with self._lock:
            self._recorder = self._recorder or native.GradientRecorder()
            self._nodes.setdefault(node.id, node)
        routine = self._recorder.routine(node.id)
        context.insert_before_backward_op(NativeRoutine(routine, self._record_outputs), node=node)
        context.insert_after_backward_op(NativeRoutine(routine, self._record_inputs), node=node)

    def _record_outputs(self, *gradients: Any, node: _Node) -> None:
        norms = [self._norm_of(gradient) for gradient in _members(gradients)]
        with self._lock:
            self._operator(node).grad_outputs.add(norms)

    def _record_inputs(self, *gradients: Any, node: _Node) -> None:
        norms = [self._norm_of(gradient) for gradient in _members(gradients)]
        with self._lock:
            self._operator(node).grad_inputs.add(norms)

    def _operator(self, node: _Node) -> _BackwardOperator:
        return self._operators.setdefault(node.id, _BackwardOperator(node))

    def _norm_of(self, gradient: Any) -> float | Literal["skipped"] | None:
        if gradient is None:
            return None
        norm = self._skips.read(gradient, lambda array, arrays: arrays.norm(array))
        return "skipped" if norm is None else norm

    @property
    def loss_scales(self) -> list[float]:
        """The factors by which a GradScaler has multiplied losses, in the order in which each came first; empty if
        there are none."""
        return self._loss_scaling.scales()

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._operators.clear()
            if self._recorder is not None:
                self._recorder.reset()
        self._skips.reset()
        self._loss_scaling.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            every = [gradient for operator in self._all() for gradient in operator.gradients()]
            if by == "id":
                return [gradient.row(norms, calls) for gradient, norms, calls in every]
            groups: dict[_Gradient, list[tuple[_Norms, int]]] = {}
            for gradient, norms, calls in every:
                groups.setdefault(gradient.group(by), []).append((norms, calls))
            return [
                gradient.row(_all_norms(group), sum(calls for _, calls in group)) for gradient, group in groups.items()
            ]

    def _all(self) -> list[_BackwardOperator]:
        """In the order in which they first ran."""
        merged: dict[int, _BackwardOperator] = {}
        for operator in sorted([*self._operators.values(), *self._recorded()], key=lambda operator: operator.first_ns):
            known = merged.setdefault(operator.node.id, _BackwardOperator(operator.node))
            known.grad_outputs.merge(operator.grad_outputs)
            known.grad_inputs.merge(operator.grad_inputs)
        return list(merged.values())

    def _recorded(self) -> Iterator[_BackwardOperator]:
        for node_id, first_ns, sides in self._recorder.rows() if self._recorder is not None else ():
            outputs, inputs = (_Gradients(calls, [_Norms(*fields) for fields in norms]) for calls, norms in sides)
            yield _BackwardOperator(self._nodes[node_id], outputs, inputs, first_ns)

    def _remarks(self, by: GroupBy) -> list[str]:
        return [self._loss_scaling.caption(), self._skips.caption()]

    _side = Column("side", lambda row: row.side, left=True, field="side")
    _of_node = (
        Column("backward op", lambda row: row.backward_op, left=True, folds=True, field="backward_op"),
        _side,
        number_column("pos", "position"),
    )
    _values = (
        number_column("calls", "calls"),
        *(general_column(f"{field} norm", field) for field in ("mean", "min", "max")),
        number_column("undefined", "undefined"),
        number_column("not finite", "nonfinite"),
    )
    _groupings = place_groupings(
        Row,
        _values,
        {"id": _of_node, "op": _of_node, "module": [_side], "line": [_side]},
        only_by_id=("backward_op_id", "last"),
        position="int64",
    )


class _Node(NamedTuple):
    """A backward operator."""

    place: Place  # of its forward operator
    name: str
    id: int


class _Gradient(NamedTuple):
    """One gradient of a backward operator; or what several have in common."""

    place: Place
    backward_op: str
    backward_op_id: int | None
    side: Side
    position: int | None

    def group(self, by: GroupBy) -> _Gradient:
        place = self.place.group(by)
        if by == "op":
            return self._replace(place=place, backward_op_id=None)
        return _Gradient(place, "", None, self.side, None)

    def row(self, norms: _Norms, calls: int) -> Row:
        return Row(
            *self.place,
            backward_op=self.backward_op,
            backward_op_id=self.backward_op_id,
            side=self.side,
            position=self.position,
            calls=calls,
            undefined=norms.undefined,
            nonfinite=norms.nonfinite,
            last=norms.last,
            min=norms.min if norms.finite else None,
            max=norms.max if norms.finite else None,
            mean=norms.sum / norms.finite if norms.finite else None,
            skipped=norms.skipped,
        )


@dataclasses.dataclass(eq=False)
class _Norms:
    """The norms of one gradient, or of several. tools/gradients/gradients.cpp gathers them, too."""

    undefined: int = 0
    skipped: int = 0
    nonfinite: int = 0
    finite: int = 0
    last: float | None = None
    last_ns: int = 0  # when that was
    min: float = math.inf
    max: float = -math.inf
    sum: float = 0.0

    def merge(self, other: _Norms) -> None:
        self.undefined += other.undefined
        self.skipped += other.skipped
        self.nonfinite += other.nonfinite
        self.finite += other.finite
        if other.last_ns > self.last_ns:
            self.last, self.last_ns = other.last, other.last_ns
        self.min, self.max, self.sum = min(self.min, other.min), max(self.max, other.max), self.sum + other.sum

    def add(self, norm: float) -> None:
        self.last, self.last_ns = norm, time.perf_counter_ns()
        if not math.isfinite(norm):
            self.nonfinite += 1
            return
        self.finite += 1
        self.min, self.max, self.sum = min(self.min, norm), max(self.max, norm), self.sum + norm


def _members(gradients: Iterable[Any]) -> Iterator[Any]:
    """In compiled code, the gradient of an operand that is a list is a list."""
    for gradient in gradients:
        if isinstance(gradient, (list, tuple)):
            yield from gradient
        else:
            yield gradient


def _all_norms(group: list[tuple[_Norms, int]]) -> _Norms:
    """The norms of all members of the group. It is not known which norm was the last."""
    every = _Norms()
    for norms, _ in group:
        every.merge(norms)
    every.last = None
    return every


@dataclasses.dataclass(eq=False)
class _Gradients:
    """The gradients on one side of a backward operator."""

    calls: int = 0
    norms: list[_Norms] = dataclasses.field(default_factory=list)

    def add(self, norms: list[float | Literal["skipped"] | None]) -> None:
        self.calls += 1
        self.norms += [_Norms() for _ in norms[len(self.norms) :]]  # a list may have another length in another run
        for known, norm in zip(self.norms, norms, strict=False):
            if norm is None:
                known.undefined += 1
            elif norm == "skipped":
                known.skipped += 1
            else:
                known.add(norm)

    def merge(self, other: _Gradients) -> None:
        self.calls += other.calls
        self.norms += [_Norms() for _ in other.norms[len(self.norms) :]]
        for known, norms in zip(self.norms, other.norms, strict=False):
            known.merge(norms)


@dataclasses.dataclass(eq=False)
class _BackwardOperator:
    node: _Node
    grad_outputs: _Gradients = dataclasses.field(default_factory=_Gradients)
    grad_inputs: _Gradients = dataclasses.field(default_factory=_Gradients)
    first_ns: int = dataclasses.field(default_factory=time.perf_counter_ns)  # when it ran first

    def gradients(self) -> list[tuple[_Gradient, _Norms, int]]:
        """Each gradient with its norms and the number of its node's runs."""
        sides: list[tuple[Side, _Gradients]] = [("grad_output", self.grad_outputs), ("grad_input", self.grad_inputs)]
        return [
            (_Gradient(self.node.place, self.node.name, self.node.id, side, position), norms, gradients.calls)
            for side, gradients in sides
            for position, norms in enumerate(gradients.norms)
        ]
