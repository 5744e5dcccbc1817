"""Puts taps into a v1 graph, beside the original: what they change is built a second time.

Operators that no edit reaches are shared with the original, as are variables. So a program's own runs notice nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow import nodes, port, tap_nodes
from amanda.drivers.tensorflow.changed import Changed
from amanda.drivers.tensorflow.graph_site import GraphSite, Plans, Shown
from amanda.drivers.tensorflow.order import Loops, is_back_edge


class _Late(NamedTuple):
    """An input of a copy that is made after it: by a loop's back edge, or a control input that was added later."""

    copy: tf.Operation
    index: int | None  # None: a control input
    before: tf.Operation
    value_index: int


class Cone:
    """What runs instead of some fetches and targets."""

    def __init__(self, site: GraphSite, plans: Plans, fed: Collection[int]) -> None:
        self._graph = site.operators[0].graph
        self._operators, self._gradients, self._fed = site.operators, site.gradients, fed
        self._plans = {shown.op: (shown, taps) for shown, taps in plans}
        self._nodes = nodes.of(self._graph)
        self._taps = tap_nodes.TapNodes(site.backend, self._graph)
        self._loops = Loops(site.operators)
        self._renamed: dict[str, str] = {}  # loops
        self._copies: dict[tf.Operation, tf.Operation] = {}
        self._own: dict[int, tf.Tensor] = {}  # results of copies and of replacements, by the id of the original's
        self._seen: dict[int, tf.Tensor] = {}  # of these, after the taps behind the operator
        self._saved: dict[tuple[tf.Operation, int], tf.Tensor] = {}  # what an operator gets after the taps before it
        self._late: list[_Late] = []
        self._last: dict[tf.Operation, tf.Operation] = {}  # of an operator's taps
        self.tap_ops: list[tf.Operation] = []

    @property
    def kept(self) -> list[object]:
        """Must live as long as the graph runs."""
        return self._taps.kept

    def build(self) -> None:
        self._changed = Changed(
            self._operators, list(self._plans.values()), self._gradients, self._fed, self._loops
        ).found
        for op in self._operators:
            if op in self._changed or op in self._plans:
                self._build(op)
        for late in self._late:
            before = self._copies[late.before]
            if late.index is None:
                port.add_control_input(late.copy, before)
            else:
                port.set_input(late.copy, late.index, before.outputs[late.value_index])

    def operation(self, op: tf.Operation) -> tf.Operation:
        """What runs in place of an operator."""
        return self._copies.get(op, op)

    def value(self, tensor: tf.Tensor, user: tf.Operation | None = None) -> tf.Tensor:
        """What an operator gets for one of its inputs, before its own taps; without `user`: what is fetched."""
        key = id(tensor)
        if key in self._fed:
            return tensor
        gradient = self._gradients.get(user) if user is not None else None
        own = self._own.get(key, tensor)
        if gradient is not None:
            saved = self._saved.get((gradient.forward, key))
            if saved is not None:
                return saved
            if tensor.op is gradient.forward:
                return own
        return self._seen.get(key, own)

    def _build(self, op: tf.Operation) -> None:
        shown, taps = self._plans.get(op, (None, ()))
        inputs = [self.value(tensor, op) for tensor in op.inputs]
        controls = [self._copies.get(before, before) for before in op.control_inputs if self._is_there(before)]
        controls += self._taps_of_forward(op)
        chain: list[tf.Operation] = []  # the taps of an operator run in their order
        for tap in taps:
            if tap.point == "before":
                for index, tensor in self._emit(shown, tap, inputs, (), [*controls, *chain[-1:]], chain):
                    inputs[index] = self._saved[op, id(op.inputs[index])] = tensor
        replacing = next((tap for tap in taps if tap.point == "replace"), None)
        if replacing:
            results = dict(self._emit(shown, replacing, inputs, (), [*controls, *chain[-1:]], chain))
            outputs = [results[index] for index in range(len(op.outputs))]
            self._copies[op] = chain[-1]
        elif op in self._changed:
            self._copies[op] = self._copy(op, inputs, [*controls, *chain[-1:]])
            outputs = list(self._copies[op].outputs)
        else:
            outputs = list(op.outputs)
        self._own.update((id(old), new) for old, new in zip(op.outputs, outputs, strict=True))
        for tap in taps:
            if tap.point == "after":
                done = self._copies.get(op, op)
                for index, tensor in self._emit(shown, tap, inputs, outputs, [*chain[-1:], done], chain):
                    outputs[index] = self._seen[id(op.outputs[index])] = tensor

    def _taps_of_forward(self, op: tf.Operation) -> list[tf.Operation]:
        """A backward operator's taps run after those of its forward operator: executions may share values."""
        gradient = self._gradients.get(op)
        last = self._last.get(gradient.forward) if gradient else None
        if gradient is None or last is None or self._loops.around(op) != self._loops.around(gradient.forward):
            return []  # between loops there are no control inputs
        return [last]

    def _emit(
        self,
        shown: Shown,
        tap: _core.Tap,
        inputs: Sequence[tf.Tensor],
        outputs: Sequence[tf.Tensor],
        after: Sequence[tf.Operation],
        chain: list[tf.Operation],
    ) -> list[tuple[int, tf.Tensor]]:
        emitted = self._taps.emit(shown, tap, inputs, outputs, after)
        if emitted is None:
            return []
        chain.append(emitted.op)
        self._last[shown.op] = emitted.op
        self.tap_ops.append(emitted.op)
        return list(emitted.results.items())

    def _is_there(self, before: tf.Operation) -> bool:
        return before in self._copies or before not in self._changed

    def _copy(self, op: tf.Operation, inputs: list[tf.Tensor], controls: list[tf.Operation]) -> tf.Operation:
        missing = [
            i for i, tensor in enumerate(op.inputs) if is_back_edge(tensor.op, op) and tensor.op in self._changed
        ]
        for index in missing:  # a merge's other input has the same type
            inputs[index] = inputs[1 - index]
        copy = self._nodes.create(self._graph, self._node_def(op), inputs, controls, op)
        for old, new in zip(op.outputs, copy.outputs, strict=True):
            new.set_shape(old.shape)
        self._late += [_Late(copy, i, op.inputs[i].op, op.inputs[i].value_index) for i in missing]
        self._late += [_Late(copy, None, before, 0) for before in op.control_inputs if not self._is_there(before)]
        return copy

    def _node_def(self, op: tf.Operation) -> object:
        node_def = op.node_def
        if "frame_name" in node_def.attr:
            name = node_def.attr["frame_name"].s.decode()
            renamed = self._renamed.setdefault(name, f"{nodes.PREFIX}{self._nodes.count}/{name}")
            node_def.attr["frame_name"].s = renamed.encode()
        if "_class" in node_def.attr:
            places = node_def.attr["_class"].list.s
            kept = [self._colocated(place.decode()) for place in places]
            del places[:]
            places.extend(place.encode() for place in kept if place)
        return node_def

    def _colocated(self, place: str) -> str:
        """The same for copies: "loc:@operator"; "": it is copied later."""
        start, _, name = place.partition("@")
        if start != "loc:":
            return place
        op = self._graph.get_operation_by_name(name)
        if op in self._copies:
            return f"loc:@{self._copies[op].name}"
        return place if op not in self._changed else ""
