"""The operators of a v1 graph that run, their order, and their loops."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Sequence

import tensorflow as tf


def to_run(roots: Iterable[tf.Operation], fed: Collection[int]) -> list[tf.Operation]:
    """The operators that must run for these operators to run, operands before users. `fed`: the ids of tensors that are
    fed.

    Operators are not created in this order: the gradients of a loop change it afterwards. Back edges of loops are
    ignored, except that they lead to the loops' bodies.
    """
    found: list[tf.Operation] = []
    begun: set[tf.Operation] = set()
    pending = collections.deque(roots)
    while pending:
        stack = [(pending.popleft(), False)]
        while stack:
            op, is_done = stack.pop()
            if is_done:
                found.append(op)
            elif op not in begun:
                begun.add(op)
                stack.append((op, True))
                operands = [operand.op for operand in op.inputs if id(operand) not in fed]
                pending.extend(before for before in operands if is_back_edge(before, op))
                stack += [(before, False) for before in op.control_inputs]
                stack += [(before, False) for before in reversed(operands) if not is_back_edge(before, op)]
    return found


def is_back_edge(before: tf.Operation, op: tf.Operation) -> bool:
    return bool(before.type.endswith("NextIteration") and op.type.endswith("Merge"))


class Loops:
    """The loops that operators run in. (The graph's structure has them; what Python knows of them may be lost.)"""

    def __init__(self, operators: Sequence[tf.Operation]) -> None:
        """`operators`: operands before users."""
        self._outer: dict[str, str] = {}  # "" if there is none
        self._members: dict[str, list[tf.Operation]] = {}
        self._of: dict[tf.Operation, str] = {}
        self._conditions: dict[tf.Operation, frozenset[tuple[int, int]]] = {}
        results: dict[tf.Operation, str] = {}  # the loop in which results are
        for op in operators:
            self._conditions[op] = self._conditions_of(op)
            before = [*(operand.op for operand in op.inputs), *op.control_inputs]
            loop = next(filter(None, (results.get(each, "") for each in before)), "")
            if op.type.endswith("Enter"):
                name = op.get_attr("frame_name").decode()
                self._outer.setdefault(name, loop)
                loop = results[op] = name
            else:
                results[op] = self._outer.get(loop, "") if op.type.endswith("Exit") else loop
            self._of[op] = loop
        for op, loop in self._of.items():
            while loop:
                self._members.setdefault(loop, []).append(op)
                loop = self._outer[loop]

    def around(self, op: tf.Operation) -> list[str]:
        """The loops that it is in, the innermost first. Operators that enter and leave a loop are in it."""
        found, loop = [], self._of.get(op, "")
        while loop:
            found.append(loop)
            loop = self._outer[loop]
        return found

    def members(self, loop: str) -> list[tf.Operation]:
        return self._members[loop]

    def nexts(self, loop: str) -> list[tf.Operation]:
        """The operators that carry values to the loop's next iteration."""
        return [op for op in self._members[loop] if op.type.endswith("NextIteration") and self._of[op] == loop]

    def is_conditional(self, op: tf.Operation) -> bool:
        """True if it is in a branch of a conditional, so that it may not run."""
        return bool(self._conditions[op])

    def _conditions_of(self, op: tf.Operation) -> frozenset[tuple[int, int]]:
        """The branches that it is in: a condition, and 0 or 1."""
        found = [self._taken(operand) for operand in op.inputs if not is_back_edge(operand.op, op)]
        if op.type.endswith("Merge"):
            return found[0].intersection(*found[1:]) if found else frozenset()
        return frozenset().union(*found, *(self._conditions.get(each, ()) for each in op.control_inputs))

    def _taken(self, operand: tf.Tensor) -> frozenset[tuple[int, int]]:
        switch = operand.op
        conditions = self._conditions.get(switch, frozenset())
        if not switch.type.endswith("Switch") or switch.inputs[1].op.type == "LoopCond":
            return conditions
        return conditions | {(id(switch.inputs[1]), operand.value_index)}
