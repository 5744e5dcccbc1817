"""The ends of a variable's paths to what is differentiated, in graphs: the operators that give no gradient."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import bodies, op_types, places, variables

Reason = Literal["stop_gradient", "integer", "boolean", "flat", "no gradient", "custom_gradient", "tape"]

_SHAPES = frozenset({"Shape", "ShapeN", "Rank", "Size"})  # they depend on no value
_FLAT = frozenset({"Round", "Rint", "Floor", "Ceil", "FloorDiv", "TruncateDiv"})  # their gradients are None
_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter")
_RECORDED = "_amanda_recorded"  # of a graph: the names of operators that a tape recorded


class End(NamedTuple):
    """An operator at which a path ends, and the one before it."""

    reason: Reason
    operator: str
    place: places.Place
    last: tuple[str, places.Place] | None  # None behind the variable itself


class Stop(NamedTuple):
    """An operator at which a function has chosen to stop, and the one before it."""

    operator: str
    place: places.Place
    last: tuple[str, places.Place] | None
    variables: frozenset[object]  # keys of those that are its operands


class Paths(NamedTuple):
    """The paths of a variable to what is differentiated."""

    is_used: bool  # an operator of the graph computes with it
    leads: bool  # one of them leads there, differentiable or not
    ends: tuple[End, ...]
    last: tuple[str, places.Place] | None  # the operator that used it, if none leads there


def note_recorded(op: tf.Operation) -> None:
    """A tape records the operator."""
    known = getattr(op.graph, _RECORDED, None)
    if known is None:
        known = set()
        setattr(op.graph, _RECORDED, known)
    known.add(op.name)


def why_closed(op_type: str, dtype: tf.DType) -> Reason | None:
    """The reason why an operator whose result has this type passes no gradient on; None if it does."""
    if op_type in ("StopGradient", "PreventGradient"):
        return "stop_gradient"
    if op_type in _FLAT:
        return "flat"
    if dtype == tf.bool:
        return "boolean"
    if dtype.is_integer:
        return "integer"
    return "no gradient" if port.has_no_gradient(op_type) else None


def paths_of(targets: Sequence[tf.Tensor], key: object, *, has_tape: bool, is_watched: bool) -> Paths:
    """`key`: of the variable's `VariableValue`; `has_tape`: a tape differentiates; `is_watched`: it watches the variable.
    If not, an operator is an end only if no tape has recorded it."""
    walk = _Walk(targets)
    starts = [*dict.fromkeys(one for graph in walk.graphs() for one in _uses_of(graph, key))]
    computing = [op for op in starts if op_types.computes(op)] + [
        user for op in starts if not op_types.computes(op) for user in _computing_users(op)
    ]
    led = [op for op in starts if any(output.ref() in walk.before for output in op.outputs)]
    if not led:
        last = _named(computing[0]) if computing else None
        return Paths(bool(computing), False, (), last)
    ends, is_whole = walk.ends(led)
    if not is_watched:
        ends = [one for one in walk.weak_ends(led, has_tape) if one.reason == "tape"]
    elif is_whole:
        ends = walk.weak_ends(led, has_tape)
    return Paths(True, True, tuple(ends), None)


class Uses(NamedTuple):
    """How what is differentiated comes from a variable."""

    operators: dict[
        str, places.Place
    ]  # types of those that get its value, perhaps in another shape or dtype; the first
    target: tuple[str, places.Place]  # the operator of what is differentiated


def maker_of(symbol: tf.Tensor) -> tuple[str, places.Place] | None:
    """The operator of a graph that makes a value; None if it comes from outside."""
    return _named(symbol.op) if op_types.computes(symbol.op) else None


def uses_of(targets: Sequence[tf.Tensor], key: object) -> Uses:
    """`key`: of the variable's `VariableValue`."""
    walk = _Walk(targets)
    waiting = [*dict.fromkeys(one for graph in walk.graphs() for one in _uses_of(graph, key))]
    seen: set[tf.Operation] = set()
    found: dict[str, places.Place] = {}
    while waiting:
        op = waiting.pop()
        if op in seen or not any(output.ref() in walk.before for output in op.outputs):
            continue
        seen.add(op)
        if op.type in variables.MOVES or not op_types.computes(op):
            waiting += [user for output in op.outputs for user in walk.users(output)]
        else:
            found.setdefault(op.type, _place(op))
    return Uses(found, _named(targets[0].op))


def ends_where(targets: Sequence[tf.Tensor], key: object, is_end: Callable[[str, int, int], bool | None]) -> list[Stop]:
    """Follows a variable, `key`, to what is differentiated, until operators for which `is_end(type, id, position)` is not
    None: those for which it is true. The position is that of the operand on the way."""
    walk = _Walk(targets)
    starts = [*dict.fromkeys(one for graph in walk.graphs() for one in _uses_of(graph, key))]
    return list(walk.stopped(starts, is_end))


class _Walk:
    """Through the graph of what is differentiated, and the functions that it calls."""

    def __init__(self, targets: Sequence[tf.Tensor]) -> None:
        self._calls: dict[int, list[tf.Operation]] = collections.defaultdict(list)  # by graph of a function
        self._graphs: dict[int, Any] = {id(targets[0].graph): targets[0].graph}
        self._targets = {target.ref() for target in targets}
        self.before: dict[Any, None] = {}  # references to the values that the targets come from
        waiting = list(targets)
        while waiting:
            tensor = waiting.pop()
            if tensor.ref() not in self.before:
                self.before[tensor.ref()] = None
                waiting += self._sources(tensor)

    def graphs(self) -> Iterable[Any]:
        return self._graphs.values()

    def ends(self, starts: Iterable[tf.Operation]) -> tuple[list[End], bool]:
        """The operators at which paths end, and whether one leads to a target."""
        ends: dict[tf.Operation, End] = {}
        is_whole = False
        for op, last in self._reached(starts):
            reason = _why_closed(op)
            if reason is not None:
                ends.setdefault(op, End(reason, op.type, _place(op), last))
            is_whole |= reason is None and any(output.ref() in self._targets for output in op.outputs)
        return list(ends.values()), is_whole

    def weak_ends(self, starts: Iterable[tf.Operation], has_tape: bool) -> list[End]:
        """Where all operators are differentiable: those whose gradient the program computes, and those that no tape has
        recorded."""
        customs: dict[tf.Operation, End] = {}
        unrecorded: dict[tf.Operation, End] = {}
        for op, last in self._reached(starts):
            if op_types.is_identity(op) and _has_own_gradient(op):
                customs.setdefault(op, End("custom_gradient", op.type, _place(op), last))
            known = getattr(op.graph, _RECORDED, ())
            if has_tape and op_types.computes(op) and op.name not in known and not unrecorded:
                unrecorded[op] = End("tape", op.type, _place(op), last)
        return [*customs.values()] or [*unrecorded.values()]

    def stopped(self, starts: Iterable[tf.Operation], is_end: Callable[[str, int, int], bool | None]) -> Iterator[Stop]:
        """See `ends_where`."""
        waiting: collections.deque[tuple[tf.Operation, int, tuple[str, places.Place] | None]]
        waiting = collections.deque((op, 0, None) for op in starts)
        seen: set[tuple[tf.Operation, int]] = set()
        while waiting:
            op, position, last = waiting.popleft()
            is_led = any(output.ref() in self.before for output in op.outputs)
            if (op, position) in seen or not is_led or _why_closed(op) is not None:
                continue
            seen.add((op, position))
            if op_types.computes(op):
                place = _place(op)
                found = is_end(op.type, place.id, position)
                if found is not None:
                    if found:
                        read = [variables.variable_of(operand) for operand in op.inputs]
                        yield Stop(op.type, place, last, frozenset(one.key for one in read if one is not None))
                    continue
                last = op.type, place
            for output in op.outputs:
                for user in self.users(output):
                    waiting.extend((user, at, last) for at in _positions(user, output))

    def _reached(self, starts: Iterable[tf.Operation]) -> Iterator[tuple[tf.Operation, Any]]:
        """The operators on paths to the targets, from the variable on; not those behind one that passes no gradient on.
        Each with the last one before it that computes."""
        waiting: collections.deque[tuple[tf.Operation, tuple[str, places.Place] | None]]
        waiting = collections.deque((op, None) for op in starts)
        seen: set[tf.Operation] = set()
        while waiting:
            op, last = waiting.popleft()
            if op in seen or not any(output.ref() in self.before for output in op.outputs):
                continue
            seen.add(op)
            yield op, last
            if _why_closed(op) is None:
                behind = _named(op) if op_types.computes(op) else last
                waiting.extend((user, behind) for output in op.outputs for user in self.users(output))

    def users(self, tensor: tf.Tensor) -> Iterator[tf.Operation]:
        if tensor.ref() not in self.before:
            return
        for op in tensor.consumers():
            graphs = _functions(op)
            if not graphs:
                yield op
                continue
            for graph in graphs:
                for given, inner in zip(_arguments(op), graph.inputs, strict=False):
                    if given is tensor:
                        yield inner.op
        for call in self._calls.get(id(tensor.graph), ()):
            if any(tensor is result for result in tensor.graph.outputs):
                yield call

    def _sources(self, tensor: tf.Tensor) -> Iterator[tf.Tensor]:
        op = tensor.op
        graphs = _functions(op)
        for graph in graphs:
            if not any(op is known for known in self._calls[id(graph)]):
                self._calls[id(graph)].append(op)
            self._graphs[id(graph)] = graph
            if tensor.value_index < len(graph.outputs) and graph.outputs[tensor.value_index].dtype == tensor.dtype:
                yield graph.outputs[tensor.value_index]
        if not graphs and op.type not in _SHAPES:
            yield from op.inputs
        if op.type == "Placeholder":
            for call in self._calls.get(id(op.graph), ()):
                for given, inner in zip(_arguments(call), op.graph.inputs, strict=False):
                    if inner is tensor:
                        yield given
            if port.is_loop_body(op.graph):
                yield from (
                    one for one, inner in zip(op.graph.outputs, op.graph.inputs, strict=False) if inner is tensor
                )


def _positions(op: tf.Operation, tensor: tf.Tensor) -> list[int]:
    """The positions of an operator's operands that are this value; 0 where a function begins."""
    given = [
        position
        for position, operand in enumerate(op_types.inputs_of(op))
        if any(op.inputs[index] is tensor for _, index in op_types.members(operand))
    ]
    return given or [0]


def _why_closed(op: tf.Operation) -> Reason | None:
    if not op_types.computes(op) or not op.outputs:
        return None
    return why_closed(op.type, op.outputs[0].dtype)


def _has_own_gradient(op: tf.Operation) -> bool:
    try:
        return bool(op.get_attr("_gradient_op_type"))
    except ValueError:
        return False


def _functions(op: tf.Operation) -> list[Any]:
    """The graphs of the functions that a node calls, as far as they are known."""
    if op.type not in op_types.CALLS:
        return []
    found = [port.find_function(op.graph, name) for name in port.function_names(op)]
    return [graph for function in found if function and (graph := port.graph_of(function)) is not None]


def _arguments(op: tf.Operation) -> Sequence[tf.Tensor]:
    """Without the choice of a conditional."""
    given: Sequence[tf.Tensor] = (
        op.inputs[1:] if op.type in ("If", "StatelessIf", "Case", "StatelessCase") else op.inputs
    )
    return given


def _uses_of(graph: Any, key: object) -> Iterator[tf.Operation]:
    """The nodes that read a variable, in the graph and in the functions that get it; a call of one that is not known."""
    waiting: list[tf.Tensor] = []
    for op in graph.get_operations():
        if op.type in ("VariableV2", "Variable"):
            found = variables.variable_of(op.outputs[0])
            if found is not None and found.key == key:
                yield op
        waiting += [
            operand
            for operand in op.inputs
            if operand.dtype == tf.resource and (found := variables.variable_behind(operand)) and found.key == key
        ]
    seen: set[Any] = set()
    while waiting:
        resource = waiting.pop()
        if resource.ref() in seen:
            continue
        seen.add(resource.ref())
        for op in resource.consumers():
            graphs = _functions(op)
            if not graphs and not op.type.startswith(_WRITES):
                yield op
            for inner in graphs:
                both = zip(_arguments(op), inner.inputs, strict=False)
                waiting += [argument for given, argument in both if given is resource]


def _computing_users(op: tf.Operation) -> Iterator[tf.Operation]:
    waiting, seen = [op], {op}
    while waiting:
        for output in waiting.pop().outputs:
            for user in output.consumers():
                if user in seen or user.type.startswith(_WRITES):
                    continue
                seen.add(user)
                if op_types.computes(user):
                    yield user
                elif user.type not in op_types.CALLS:
                    waiting.append(user)


def _named(op: tf.Operation) -> tuple[str, places.Place]:
    return op.type, _place(op)


def _place(op: tf.Operation) -> places.Place:
    return places.place_of(op, *bodies.position_of(op.graph))
