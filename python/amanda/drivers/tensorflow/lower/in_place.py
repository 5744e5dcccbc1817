"""Puts taps into a graph that is built for one toolset alone: users of a value are given the tap's instead.

First every tap is created, which may fail and changes nothing that runs; then edges are moved, which cannot fail.
"""

from __future__ import annotations

import collections
import functools
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.lower import gradients, tap_nodes
from amanda.drivers.tensorflow.view import attach, links, op_types
from amanda.drivers.tensorflow.view.graph_site import Plans, Shown
from amanda.drivers.tensorflow.view.links import Gradient


def running(graph: Any, roots: Sequence[tf.Operation] | None = None) -> list[tf.Operation]:
    """The operators that a function's results and effects need, as they were created, but operands before users and
    forward operators before their backward operators. The others never run. `roots`: those that give the results and the
    effects, if they are not those of the graph."""
    needs: dict[tf.Operation, set[tf.Operation]] = {}
    waiting = [*(tensor.op for tensor in graph.outputs), *graph.control_outputs] if roots is None else [*roots]
    while waiting:
        op = waiting.pop()
        if op not in needs:
            needs[op] = {*(tensor.op for tensor in op.inputs), *op.control_inputs}
            waiting.extend(needs[op])
    order = [op for op in graph.get_operations() if op in needs]
    number = {op: i for i, op in enumerate(order)}
    if all(number[needed] < i for op, i in number.items() for needed in needs[op]):
        return order
    # Gradients of loops give a loop more inputs, which are created after it.
    for op in order:
        gradient = links.gradient_of(op)
        if gradient and gradient.forward in needs and gradient.forward.type not in op_types.CALLS:
            needs[op].add(gradient.forward)
    return _sorted(order, needs, number)


def _sorted(
    order: list[tf.Operation], needs: dict[tf.Operation, set[tf.Operation]], number: dict[tf.Operation, int]
) -> list[tf.Operation]:
    """Each after what it needs, otherwise in the same order."""
    users: dict[tf.Operation, list[tf.Operation]] = collections.defaultdict(list)
    for op, needed in needs.items():
        for other in needed:
            users[other].append(op)
    missing = {op: len(needed) for op, needed in needs.items()}
    ready = [i for op, i in number.items() if not missing[op]]  # in order, so it is a heap
    found = []
    while ready:
        op = order[heapq.heappop(ready)]
        found.append(op)
        for user in users[op]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, number[user])
    return found


class InPlace:
    """The edges of one graph, as they will be."""

    def __init__(
        self, graph: Any, of_backward: Mapping[tf.Operation, Gradient], backend: _core.GraphBackend = attach.FUNCTION
    ) -> None:
        self._graph = graph
        self._backward: dict[tf.Operation, list[tf.Operation]] = collections.defaultdict(list)
        for op, gradient in of_backward.items():
            self._backward[gradient.forward].append(op)
        self._operators = graph.get_operations()  # without taps
        self._changed: dict[tf.Operation, list[tf.Tensor]] = {}  # the inputs that operators will have
        self._moved: dict[tuple[tf.Operation, int], tf.Tensor] = {}
        self._instead: dict[int, tf.Tensor] = {}  # of what the function returns
        self._waits: list[tuple[tf.Operation, tf.Operation]] = []  # (operator, tap that it waits for)
        self._replaced: dict[tf.Operation, tf.Operation] = {}
        self._roots: list[tf.Operation] = []
        self._last: dict[tf.Operation, tf.Operation] = {}
        self._taps = tap_nodes.TapNodes(backend, graph)

    def insert(self, plans: Plans) -> tap_nodes.TapNodes:
        """Creates the taps, and then moves the edges. Keep what it returns as long as the graph runs."""
        with self._graph.as_default(), port.stop_recording(), tf.control_dependencies(None):
            for shown, taps in plans:
                self._insert(shown, taps)
        self._commit()
        return self._taps

    @functools.cached_property
    def _users(self) -> dict[int, list[tuple[tf.Operation, int]]]:
        """The operators that take a tensor, by its id. Edits alone ask for them."""
        found: dict[int, list[tuple[tf.Operation, int]]] = collections.defaultdict(list)
        for op in self._operators:
            for index, tensor in enumerate(op.inputs):
                found[id(tensor)].append((op, index))
        return found

    def _inputs(self, op: tf.Operation) -> Sequence[tf.Tensor]:
        known = self._changed.get(op)
        return op.inputs if known is None else known

    def _insert(self, shown: Shown, taps: Iterable[_core.Tap]) -> None:
        # Routines of a backward operator find what those of its forward operator left.
        last = self._last.get(shown.forward.op) if shown.forward else None
        outputs = list(shown.op.outputs)
        for tap in taps:
            waits = [op for op in (last,) if op is not None]
            if tap.point == "after":
                waits.append(self._replaced.get(shown.op, shown.op))
            node = self._taps.emit(shown, tap, self._inputs(shown.op), outputs, waits)
            if node is None:
                continue
            last = node.op
            if tap.point == "before":
                self._edit_inputs(shown, node)
            elif tap.point == "replace":
                self._replace(shown, node, outputs)
            else:
                self._edit_outputs(shown, node, outputs)
            self._last[shown.op] = node.op

    def _edit_inputs(self, shown: Shown, node: tap_nodes.Emitted) -> None:
        if not node.results:
            self._waits.append((shown.op, node.op))
        for index, new in node.results.items():
            old = self._inputs(shown.op)[index]
            gradients.passes_through(node.op, new, old)
            self._move(shown.op, index, new)
            for op in self._backward[shown.op]:  # what it saved is what it got
                for position, tensor in enumerate(self._inputs(op)):
                    if tensor is old:
                        self._move(op, position, new)

    def _replace(self, shown: Shown, node: tap_nodes.Emitted, outputs: list[tf.Tensor]) -> None:
        given = [index for operand in shown.inputs for _, index in op_types.members(operand)]
        gradients.replaces(node.op, shown.op, [i for i in given if op_types.is_value(shown.op.inputs[i])])
        self._replaced[shown.op] = node.op
        for index, new in node.results.items():
            self._give(outputs[index], new, ())
            outputs[index] = new

    def _edit_outputs(self, shown: Shown, node: tap_nodes.Emitted, outputs: list[tf.Tensor]) -> None:
        self._roots.append(node.op)
        for index, new in node.results.items():
            gradients.passes_through(node.op, new, outputs[index])
            self._give(outputs[index], new, self._backward[shown.op])
            outputs[index] = new

    def _give(self, old: tf.Tensor, new: tf.Tensor, keep: Sequence[tf.Operation]) -> None:
        """Gives all users the new tensor, but those that keep the old one."""
        self._instead[id(old)] = new
        users, self._users[id(old)] = self._users[id(old)], []
        for op, index in users:
            if op in keep:
                self._users[id(old)].append((op, index))
            else:
                self._move(op, index, new)

    def _move(self, op: tf.Operation, index: int, new: tf.Tensor) -> None:
        users, inputs = self._users, self._changed.setdefault(op, list(op.inputs))
        old = inputs[index]
        if (op, index) in users[id(old)]:
            users[id(old)].remove((op, index))
        users[id(new)].append((op, index))
        inputs[index] = new
        self._moved[op, index] = new

    def _commit(self) -> None:
        graph = self._graph
        for (op, index), new in self._moved.items():
            port.set_input(op, index, new)
        for op, tap in self._waits:
            port.add_control_input(op, tap)
        for op in self._replaced:
            for user in port.control_users(op):
                others = [self._replaced.get(other, other) for other in user.control_inputs]
                port.set_control_inputs(user, others)
        graph.control_outputs[:] = [self._replaced.get(op, op) for op in graph.control_outputs]
        known = {*graph.control_outputs}
        graph.control_outputs.extend(op for op in self._roots if op not in known)
        if self._instead:
            graph.outputs[:] = map(self._final, graph.outputs)
            graph.structured_outputs = tf.nest.map_structure(
                self._final, graph.structured_outputs, expand_composites=True
            )

    def _final(self, value: Any) -> Any:
        while isinstance(value, tf.Tensor) and id(value) in self._instead:
            value = self._instead[id(value)]
        return value


def keep_calls(graph: Any, operators: Iterable[tf.Operation], has_taps: Any) -> None:
    """Keeps calls of functions with taps in the graph: TensorFlow drops those that had no effects when they were made,
    and whose results no one uses once they are in line."""
    kept = {*graph.control_outputs}
    for op in operators:
        if op.type in op_types.CALLS and op not in kept and any(map(has_taps, called_by(op))):
            graph.control_outputs.append(op)


def called_by(op: tf.Operation) -> Iterator[Any]:
    """The functions that a node runs."""
    for name in port.function_names(op):
        function = port.find_function(op.graph, name)
        if function is not None:
            yield function
