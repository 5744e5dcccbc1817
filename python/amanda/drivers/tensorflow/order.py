"""Which operators of a v1 graph run, in which order, and in which loops."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Mapping, Sequence

import tensorflow as tf


def to_run(roots: Iterable[tf.Operation], fed: Collection[int]) -> list[tf.Operation]:
    """What must run for these operators to run, operands before users. `fed`: the ids of tensors that are given.

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


def forward_first(operators: list[tf.Operation], forward: Mapping[tf.Operation, tf.Operation]) -> list[tf.Operation]:
    """The same operators, and those that are forward operators of others before these: a gradient's shapes, for example,
    do not need the operator that it is the gradient of. `forward`: of a backward operator, its forward operator."""
    number = {op: i for i, op in enumerate(operators)}
    if all(number.get(forward[op], -1) < i for op, i in number.items() if op in forward):
        return operators
    found: list[tf.Operation] = []
    begun: set[tf.Operation] = set()
    for root in operators:
        stack = [(root, False)]
        while stack:
            op, is_done = stack.pop()
            if is_done:
                found.append(op)
            elif op not in begun and op in number:
                begun.add(op)
                stack.append((op, True))
                before = [operand.op for operand in op.inputs if not is_back_edge(operand.op, op)]
                stack += [(each, False) for each in (*op.control_inputs, *reversed(before))]
                if op in forward:
                    stack.append((forward[op], False))
    return found


def is_back_edge(before: tf.Operation, op: tf.Operation) -> bool:
    return before.type.endswith("NextIteration") and op.type.endswith("Merge")


class Loops:
    """The loops that operators run in. (The graph's structure has them; what Python knows of them may be lost.)"""

    def __init__(self, operators: Sequence[tf.Operation]) -> None:
        """`operators`: operands before users."""
        self._outer: dict[str, str] = {}  # "": none
        self._members: dict[str, list[tf.Operation]] = {}
        self._of: dict[tf.Operation, str] = {}
        results: dict[tf.Operation, str] = {}  # the loop in which results are
        for op in operators:
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
        """The loops that it is in, the innermost first. What enters and leaves a loop is in it."""
        found, loop = [], self._of.get(op, "")
        while loop:
            found.append(loop)
            loop = self._outer[loop]
        return found

    def members(self, loop: str) -> list[tf.Operation]:
        return self._members[loop]
