"""Puts taps into a v1 graph, next to the original operators: operators that taps change are built a second time.

Operators that no edit reaches are shared with the original, as are variables. So a program's own runs notice nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.lower import nodes, stacks, tap_nodes
from amanda.drivers.tensorflow.lower.changed import Changed
from amanda.drivers.tensorflow.lower.copies import Copies
from amanda.drivers.tensorflow.view.graph_site import GraphSite, Plans, Shown
from amanda.drivers.tensorflow.view.order import Loops, is_back_edge


class _Late(NamedTuple):
    """An input of a copy that is made after it: by a loop's back edge, or a control input that was added later."""

    copy: tf.Operation
    input: int | None  # None for a control input
    before: tf.Operation
    value_index: int


class Cone:
    """The operators that run instead of some fetches and targets."""

    def __init__(self, site: GraphSite, plans: Plans, fed: Collection[int], functions: Copies) -> None:
        self._graph = site.operators[0].graph
        self._operators, self._gradients, self._fed = site.operators, site.gradients, fed
        self._functions = functions
        self._plans = {shown.op: (shown, taps) for shown, taps in plans}
        self._nodes = nodes.of(self._graph)
        self._taps = tap_nodes.TapNodes(site.backend, self._graph)
        self._loops = Loops(site.operators)
        self._renamed: dict[str, str] = {}  # loops
        self._copies: dict[tf.Operation, tf.Operation] = {}
        self._own: dict[int, tf.Tensor] = {}  # results of copies and of replacements, by the id of the original's
        self._seen: dict[int, tf.Tensor] = {}  # of these, after the taps behind the operator
        self._saved: dict[tuple[tf.Operation, int], tf.Tensor] = {}  # what an operator gets after the taps before it
        # Of these, those that are the same in each iteration of a loop but for the taps, by what enters the loop.
        self._invariant: dict[tuple[tf.Operation, int], tf.Tensor] = {}
        self._pops: dict[tuple[tf.Operation, int], tf.Tensor] = {}
        self._order: list[tuple[tf.Operation, tf.Operation]] = []  # (original, node): the copy runs after the node
        self._late: list[_Late] = []
        self._last: dict[tf.Operation, tf.Operation] = {}  # of an operator's taps
        self.tap_ops: list[tf.Operation] = []
        self._apart: set[tf.Operation] = set()  # of these, those that are targets of their own

    @property
    def targets(self) -> list[tf.Operation]:
        """The nodes that run for all taps to run. One waits for the others, because a run has a price for each of its
        targets. It cannot wait for those in loops and conditionals."""
        together = [op for op in self.tap_ops if op not in self._apart]
        if len(together) > 1:
            together = [self._create(port.NodeDef(op="NoOp"), [], together, together[0])]
        return [*together, *(op for op in self.tap_ops if op in self._apart)]

    @property
    def kept(self) -> list[object]:
        """Must live as long as the graph runs."""
        return [*self._taps.kept, *self._functions.kept]

    def build(self) -> None:
        calls = self._functions.calls(self._operators)
        self._changed = Changed(
            self._operators, list(self._plans.values()), self._gradients, self._fed, self._loops, calls
        ).found
        for op in self._operators:
            if op in self._changed or op in self._plans:
                self._build(op)
        self.tap_ops += [self._copies[op] for op in calls]
        self._apart |= {self._copies[op] for op in calls}  # else the iterations of a loop would run in another order
        self._order_iterations()
        for late in self._late:
            before = self._copies[late.before]
            if late.input is None:
                port.add_control_input(late.copy, before)
            else:
                port.set_input(late.copy, late.input, before.outputs[late.value_index])

    def operation(self, op: tf.Operation) -> tf.Operation:
        """The operator that runs in place of another."""
        return self._copies.get(op, op)

    def value(self, tensor: tf.Tensor, user: tf.Operation | None = None) -> tf.Tensor:
        """The value of an operator's input before the operator's own taps. Without `user`, the value that is
        fetched."""
        key = id(tensor)
        gradient = self._gradients.get(user) if user is not None else None
        saved = self._saved.get((gradient.forward, key)) if gradient is not None else None
        if saved is not None:
            return saved
        if key in self._fed:
            return tensor
        own = self._own.get(key, tensor)
        if gradient is not None and user is not None:
            invariant = stacks.entered(tensor)
            if invariant is not None and (gradient.forward, id(invariant)) in self._invariant:
                return self._popped(gradient.forward, invariant, user)
            if tensor.op is gradient.forward:
                return own
        return self._seen.get(key, own)

    def _build(self, op: tf.Operation) -> None:
        shown, taps = self._plans.get(op) or (None, [])
        inputs = [self.value(tensor, op) for tensor in op.inputs]
        controls = [self._copies.get(before, before) for before in op.control_inputs if self._is_there(before)]
        controls += self._taps_of_forward(op)
        chain: list[tf.Operation] = []  # the taps of an operator run in their order
        for tap in taps:
            if tap.point == "before":
                for index, tensor in self._emit(shown, tap, inputs, (), [*controls, *chain[-1:]], chain):
                    inputs[index] = self._saved[op, id(op.inputs[index])] = tensor
                    invariant = stacks.entered(op.inputs[index])
                    if invariant is not None:
                        self._invariant[op, id(invariant)] = tensor
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
        gradient = self._gradients.get(op) if op in self._plans else None
        last = self._last.get(gradient.forward) if gradient else None
        if gradient is None or last is None or self._loops.around(op) != self._loops.around(gradient.forward):
            return []  # between loops there are no control inputs
        return [last]

    def _emit(
        self,
        shown: Shown | None,
        tap: _core.Tap,
        inputs: Sequence[tf.Tensor],
        outputs: Sequence[tf.Tensor],
        after: Sequence[tf.Operation],
        chain: list[tf.Operation],
    ) -> list[tuple[int, tf.Tensor]]:
        assert shown is not None
        emitted = self._taps.emit(shown, tap, inputs, outputs, after)
        if emitted is None:
            return []
        chain.append(emitted.op)
        self._last[shown.op] = emitted.op
        self.tap_ops.append(emitted.op)
        if self._is_inside(shown.op):
            self._apart.add(emitted.op)
        return list(emitted.results.items())

    def _is_inside(self, op: tf.Operation) -> bool:
        return bool(self._loops.around(op)) or self._loops.is_conditional(op)

    def _popped(self, forward: tf.Operation, invariant: tf.Tensor, user: tf.Operation) -> tf.Tensor:
        """The value in the loop of the gradients that a tap made of a value that is the same in each iteration."""
        key = (forward, id(invariant))
        if key not in self._pops:
            loop = self._loops.around(user)
            found = stacks.counters(self._loops.members(loop[0])) if loop else None
            if found is None:
                raise _core.Error(
                    f"the gradients of the loop around {forward.name} have a form that amanda does not know"
                )
            saved = self._invariant[key]
            stack = stacks.Stack(self._create, forward, saved.dtype)
            push = stack.push(saved, self._entrances(forward))
            # An operator in a branch that is not taken does not run, and must not pop.
            beside = [self.value(tensor, user).op for tensor in user.inputs if stacks.entered(tensor) is None]
            pop = stack.pop(self._entrances(user), beside)
            for node, counter in zip((push, pop), found, strict=True):
                self._late.append(_Late(node, None, counter.step, 0))
                if not self._loops.is_conditional(forward):
                    self._order.append((counter.next, node))
            self._pops[key] = pop.outputs[0]
        return self._pops[key]

    def _entrances(self, op: tf.Operation) -> list[tf.Operation]:
        """Copies that enter the loops around an operator, the outermost first."""
        found = []
        for loop in reversed(self._loops.around(op)):
            found.append(next(self._copies[each] for each in self._loops.members(loop) if self._enters(each, loop)))
        return found

    def _enters(self, op: tf.Operation, loop: str) -> bool:
        return op in self._copies and op.type.endswith("Enter") and op.get_attr("frame_name").decode() == loop

    def _order_iterations(self) -> None:
        """Taps in loops run in the order of iterations, and before the loop of the gradients: executions share values."""
        for op, last in self._last.items():
            if (loops := self._loops.around(op)) and not self._loops.is_conditional(op):
                self._order += [(following, last) for following in self._loops.nexts(loops[0])]
        for op, node in self._order:
            if op in self._copies:
                port.add_control_input(self._copies[op], node)

    def _create(
        self, node_def: Any, inputs: list[tf.Tensor], controls: list[tf.Operation], op: tf.Operation
    ) -> tf.Operation:
        return self._nodes.create(self._graph, node_def, inputs, controls, op)

    def _is_there(self, before: tf.Operation) -> bool:
        return before in self._copies or before not in self._changed

    def _copy(self, op: tf.Operation, inputs: list[tf.Tensor], controls: list[tf.Operation]) -> tf.Operation:
        missing = [
            i for i, tensor in enumerate(op.inputs) if is_back_edge(tensor.op, op) and tensor.op in self._changed
        ]
        for index in missing:  # a merge's other input has the same type
            inputs[index] = inputs[1 - index]
        copy = self._create(self._node_def(op), inputs, controls, op)
        for old, new in zip(op.outputs, copy.outputs, strict=True):
            new.set_shape(old.shape)
        self._late += [_Late(copy, i, op.inputs[i].op, op.inputs[i].value_index) for i in missing]
        self._late += [_Late(copy, None, before, 0) for before in op.control_inputs if not self._is_there(before)]
        return copy

    def _node_def(self, op: tf.Operation) -> object:
        node_def = op.node_def
        self._functions.rename(node_def)
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
        """The same place for copies: "loc:@operator"; "" if that operator is copied later."""
        start, _, name = place.partition("@")
        if start != "loc:":
            return place
        op = self._graph.get_operation_by_name(name)
        if op in self._copies:
            return f"loc:@{self._copies[op].name}"
        return place if op not in self._changed else ""
