"""Shows a graph's operators to the core, in v1 graphs and in functions."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow.view import bodies, coverage, links, op_types, places, structure
from amanda.drivers.tensorflow.view.op_types import Operand


class Shown(NamedTuple):
    """An operator that tools were shown. The inputs of a backward operator are its grad_outputs, and its outputs are
    its grad_inputs. Operands that it does not take or return are nowhere."""

    op: tf.Operation
    place: places.Place
    type: int
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    forward: Shown | None
    refuse: Callable[[str, int], str | None]
    site: _core.OpSite


#: The argument of `lower`: the operators that have taps, with their taps.
Plans = list[tuple[Shown, list[_core.Tap]]]


class GraphSite:
    """See amanda::GraphSite. `shown` has the operators that were shown, by number and by operator."""

    def __init__(
        self,
        backend: _core.GraphBackend,
        operators: Sequence[tf.Operation],
        lower: Callable[[Plans], object],
        *,
        position: bodies.Position = bodies.Position("", ""),  # noqa: B008
        elsewhere: Callable[[tf.Operation], Shown | None] = lambda op: None,
        wants: Callable[[int], bool] | None = None,
    ) -> None:
        """`operators`: all of the graph that run, operands before users. `elsewhere`: those that other graphs of the same
        program showed before, under the same toolset. `wants` says whether a tool asks for a
        type; if it is None, all operators are shown. `position`: of the graph."""
        self.backend, self.operators, self._lower = backend, operators, lower
        self._position = position
        self._elsewhere, self._wants = elsewhere, wants
        self.gradients: dict[tf.Operation, links.Gradient] = {}
        self.shown: dict[tf.Operation, Shown] = {}

    def each_op(self, visitor: _core.GraphVisitor) -> None:
        self.gradients = structure.gradients_of(self.operators)
        joins = Joins(self.gradients)
        shown = []
        for op in self.operators:
            if op.type in op_types.CALLS:
                self.show_call(op, visitor)
            elif op_types.computes(op) and not joins.has(op, self.gradients.get(op)) and self._is_wanted(op):
                shown.append(op)
        for op in _forward_first(shown, self.gradients):
            made = self.shown[op] = self._shown(op, self.gradients.get(op))
            visitor.op(made.site)
            coverage.shown(self.backend, op.type, (made.forward or made).type, made.forward is not None)

    def lower(self, sites: list[tuple[int, list[_core.Tap]]]) -> object:
        shown = list(self.shown.values())
        return self._lower([(shown[index], taps) for index, taps in sites])

    def show_call(self, op: tf.Operation, visitor: _core.GraphVisitor) -> None:
        """A node that runs a function. Functions that are graphs of their own are instrumented there."""

    def refuse_edit(self, op: tf.Operation, point: str, tensor: tf.Tensor) -> str | None:
        """The reason why this graph has no place for an edit of an operand; None if it has one."""
        return None

    def _shown(self, op: tf.Operation, gradient: links.Gradient | None) -> Shown:
        if gradient is None:
            return self._make(op, op_types.inputs_of(op), op_types.outputs_of(op), None)
        forward = self._forward(gradient.forward)
        if forward.forward is None:
            return self._make(op, gradient.grad_outputs(op), gradient.grad_inputs(op), forward)
        # The derivative of a backward operator: it belongs to the same forward operator, and has none of its operands.
        while forward.forward is not None:
            forward = forward.forward
        return self._make(op, (None,) * len(forward.outputs), (None,) * len(forward.inputs), forward)

    def _is_wanted(self, op: tf.Operation) -> bool:
        if self._wants is None:
            return True
        gradient = self.gradients.get(op)
        asked = gradient.forward if gradient else op
        if gradient and (asked in self.gradients or links.gradient_of(asked) or self._elsewhere(asked)):
            return True  # it may belong to the forward operator of that one
        return self._wants(op_types.intern(self.backend, asked))

    def _forward(self, op: tf.Operation) -> Shown:
        known = self.shown.get(op) or self._elsewhere(op)
        # An operator that does not run here, because its results are fed, is not shown.
        return known or self._shown(op, links.gradient_of(op))

    def _make(
        self, op: tf.Operation, inputs: tuple[Operand, ...], outputs: tuple[Operand, ...], forward: Shown | None
    ) -> Shown:
        if forward:  # of the program, a backward operator is where its forward operator is
            place = forward.place._replace(id=places.id_of(op, *self._position))
        else:
            place = places.place_of(op, *self._position)
        type = op_types.intern(self.backend, op)
        refuse = Refusal(op, inputs, outputs, forward is not None, self.refuse_edit)
        site = _core.OpSite(
            self.backend,
            type,
            place.id,
            symbols(op.inputs, inputs),
            symbols(op.outputs, outputs),
            module_path=place.module_path,
            source=place.source,
            refuse=refuse,
            forward=forward.site if forward else None,
            attribute=functools.partial(attribute, op),
        )
        return Shown(op, place, type, inputs, outputs, forward, refuse, site)


def _forward_first(
    operators: Sequence[tf.Operation], gradients: Mapping[tf.Operation, links.Gradient]
) -> Iterator[tf.Operation]:
    """The same operators, but a backward operator that takes no result of its forward operator, as the shapes of its
    inputs, comes after that one."""
    later = set(operators)
    waiting: dict[tf.Operation, list[tf.Operation]] = collections.defaultdict(list)
    for op in operators:
        ready = [op]
        while ready:
            now = ready.pop()
            gradient = gradients.get(now)
            if gradient is not None and gradient.forward in later:
                waiting[gradient.forward].append(now)
            else:
                later.discard(now)
                yield now
                ready += reversed(waiting.pop(now, ()))


def attribute(op: tf.Operation, name: str) -> str | None:
    """An attribute as text; None if the operator has none of that name."""
    try:
        value = op.get_attr(name)
    except ValueError:
        return None
    if isinstance(value, tf.DType):
        return str(value.name)
    return value.decode() if isinstance(value, bytes) else str(value)


def symbols(tensors: Sequence[tf.Tensor], operands: Iterable[Operand]) -> tuple[Any, ...]:
    """The tensors at these positions."""

    def at(index: int | None) -> tf.Tensor | None:
        return None if index is None else tensors[index]

    return tuple([at(i) for i in operand] if isinstance(operand, tuple) else at(operand) for operand in operands)


class Refusal:
    """The reasons why an operator cannot be replaced, or an operand cannot be edited."""

    def __init__(
        self,
        op: tf.Operation,
        inputs: tuple[Operand, ...],
        outputs: tuple[Operand, ...],
        is_backward: bool,
        refuse_edit: Callable[[tf.Operation, str, tf.Tensor], str | None],
    ) -> None:
        self._op, self._operands, self._refuse_edit = op, {"before": inputs, "after": outputs}, refuse_edit
        self._is_backward, self._draws = is_backward, op_types.draws(op)
        self._inputs = [_kind(op.inputs, operand) for operand in inputs]
        self._constants = [not is_backward and op_types.must_be_constant(op, operand) for operand in inputs]
        self._outputs = [_kind(op.outputs, operand) for operand in outputs]

    def __call__(self, point: str, position: int) -> str | None:
        if point == "replace":
            if self._is_backward:
                return (
                    "a backward operator of a TensorFlow graph takes values that tools are not shown; edit the gradients "
                    "that it gives, with insert_after_backward_op"
                )
            kind = next(filter(None, (*self._inputs, *self._outputs)), None)
            return kind and f"one of its operands is {kind}, which only TensorFlow's own operators can use"
        if point == "before" and self._draws:
            return "it is the shape of the results, which edits cannot change"
        if point == "before" and position < len(self._constants) and self._constants[position]:
            return "it is a shape that TensorFlow must know when it builds the graph"
        kinds = self._inputs if point == "before" else self._outputs
        kind = kinds[position] if position < len(kinds) else None
        return (kind and f"it is {kind}, which routines cannot give") or self._refused(point, position)

    def _refused(self, point: str, position: int) -> str | None:
        operands, tensors = self._operands[point], self._op.inputs if point == "before" else self._op.outputs
        operand = operands[position] if position < len(operands) else None
        reasons = (self._refuse_edit(self._op, point, tensors[index]) for _, index in op_types.members(operand))
        return next(filter(None, reasons), None)


def _kind(tensors: Sequence[tf.Tensor], operand: Operand) -> str | None:
    for _, index in op_types.members(operand):
        if not op_types.is_value(tensors[index]):
            return f"a {tensors[index].dtype.name} tensor"
    return None


class Joins:
    """Nodes that only connect gradients, and begin them: no operators."""

    def __init__(self, gradients: Mapping[tf.Operation, links.Gradient]) -> None:
        self._gradients = gradients
        self._scopes = tuple({structure.scope_of(op, gradient.forward) for op, gradient in gradients.items()} - {""})
        self._found: set[tf.Operation] = set()

    def has(self, op: tf.Operation, gradient: links.Gradient | None) -> bool:
        """True if the operator is one. Operands are asked for before their users."""
        if gradient is not None:
            # A loop sums the gradients of what enters it.
            joins = not op_types.computes(gradient.forward) or (
                op_types.is_identity(op) and all(operand is None for operand in gradient.grad_inputs(op))
            )
        elif self._scopes and op.name.startswith(self._scopes):
            joins = True
        else:
            joins = op.type == "AddN" and all(
                operand.op in self._gradients or operand.op in self._found for operand in op.inputs
            )
        if joins:
            self._found.add(op)
        return joins
