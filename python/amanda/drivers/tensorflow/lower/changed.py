"""The operators of a v1 graph that edits reach."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow.lower import tap_nodes
from amanda.drivers.tensorflow.view import links, op_types
from amanda.drivers.tensorflow.view.graph_site import Shown
from amanda.drivers.tensorflow.view.order import Loops


class Changed:
    """The operators that must be built a second time, because an edit reaches them."""

    def __init__(
        self,
        operators: Sequence[tf.Operation],
        plans: Sequence[tuple[Shown, list[_core.Tap]]],
        gradients: Mapping[tf.Operation, links.Gradient],
        fed: Collection[int],
        loops: Loops,
        calls: Collection[tf.Operation] = (),
    ) -> None:
        """`calls`: those of functions that are copied."""
        self.found: set[tf.Operation] = set()
        self._loops, self._fed = loops, fed
        self._backward: dict[tf.Operation, list[tf.Operation]] = {}
        for op, gradient in gradients.items():
            self._backward.setdefault(gradient.forward, []).append(op)
        self._users: dict[tf.Operation, list[tf.Operation]] = {}
        for op in operators:
            for before in (*(tensor.op for tensor in op.inputs if id(tensor) not in fed), *op.control_inputs):
                self._users.setdefault(before, []).append(op)
        self._spread([*calls, *(op for shown, taps in plans for op in self._begin(shown, taps))])
        self._keep_streams()

    def _begin(self, shown: Shown, taps: list[_core.Tap]) -> list[tf.Operation]:
        op = shown.op
        edits = {"before": False, "replace": False, "after": False}
        for tap in taps:
            wired = tap_nodes.wiring(shown, tap)
            edits[tap.point] |= bool(wired and wired.results)
        points = {tap.point for tap in taps}
        found: list[tf.Operation] = []
        # Between a routine before it and one after it, the operator itself runs.
        if edits["before"] or "replace" in points or points >= {"before", "after"}:
            found.append(op)
        if edits["before"]:
            operands = {id(tensor) for tensor in op.inputs}
            found += [
                each for each in self._backward.get(op, ()) if any(id(tensor) in operands for tensor in each.inputs)
            ]
        if edits["after"]:
            found += self._users.get(op, ())
        return found

    def _spread(self, work: list[tf.Operation]) -> None:
        done: set[str] = set()
        while work:
            op = work.pop()
            if op in self.found:
                continue
            self.found.add(op)
            work += self._users.get(op, ())
            for loop in self._loops.around(op):
                if loop not in done:
                    done.add(loop)
                    work += self._loops.members(loop)

    def _keep_streams(self) -> None:
        """Operators that draw random numbers are not copied: a copy would draw others. The originals that they need,
        for a shape, run in addition to their copies. So these must have no effects."""
        for op in [op for op in self.found if op_types.draws(op)]:
            if not self._loops.around(op) and not any(map(op_types.has_effects, self._needed(op))):
                self.found.remove(op)

    def _needed(self, op: tf.Operation) -> set[tf.Operation]:
        """The operators that are copied and that the original of this operator needs."""
        needed: set[tf.Operation] = set()
        work = [op]
        while work:
            each = work.pop()
            for before in (*(tensor.op for tensor in each.inputs if id(tensor) not in self._fed), *each.control_inputs):
                if before in self.found and before not in needed:
                    needed.add(before)
                    work.append(before)
        return needed
