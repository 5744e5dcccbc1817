"""Links of v1 graphs that are older than this module, from their structure.

TensorFlow notes of a v1 backward operator which forward operator it belongs to. Which gradients it takes and gives is
seen from what enters its group of operators and what leaves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.lower import vectorized
from amanda.drivers.tensorflow.view import links, op_types


def gradients_of(operators: Iterable[tf.Operation]) -> dict[tf.Operation, links.Gradient]:
    """The gradients of all backward operators among these: watched, noted by TensorFlow, or none."""
    operators = list(operators)
    found = vectorized.gradients_of(operators)
    groups: dict[tuple[tf.Operation, str], list[tf.Operation]] = {}
    for op in operators:
        if gradient := links.gradient_of(op):
            found[op] = gradient
        elif op not in found and vectorized.body_operator(op) is None and (forward := port.original_op(op)):
            groups.setdefault((forward, _call(op, forward)), []).append(op)
    for (forward, _), group in groups.items():
        group.sort(key=port.creation)
        gradient = links.Gradient(forward, _entering(forward, group), _leaving(forward, group))
        found.update((op, gradient) for op in group)
    return found


def scope_of(op: tf.Operation, forward: tf.Operation) -> str:
    """The name scope of the gradients of which this is one: "gradients/"; "" if it is unknown."""
    start = op.name.find(f"{forward.name}_grad")
    return op.name[:start] if start > 0 else ""


def _call(op: tf.Operation, forward: tf.Operation) -> str:
    """A forward operator has several gradients if tf.gradients was called several times."""
    found = re.match(rf".*?{re.escape(forward.name)}_grad(_\d+)?/", op.name)
    return found[0] if found else ""


def _entering(forward: tf.Operation, group: Sequence[tf.Operation]) -> tuple[tf.Tensor | None, ...]:
    own = {*group, *(operand.op for operand in forward.inputs), forward}
    tensors = [operand for op in group for operand in op.inputs if operand.op not in own and operand.op.type != "Const"]
    return _in_order(forward.outputs, tensors)


def _leaving(forward: tf.Operation, group: Sequence[tf.Operation]) -> tuple[tf.Tensor | None, ...]:
    inside = {op for op in group if not op_types.is_identity(op)}
    tensors = [
        result
        for op in group
        if op in inside
        for result in op.outputs
        if not any(user in inside for user in result.consumers())
    ]
    return _in_order(forward.inputs, tensors)


def _in_order(forward: Sequence[tf.Tensor], gradients: Iterable[tf.Tensor]) -> tuple[tf.Tensor | None, ...]:
    """Each gradient belongs to the first operand, not before the one of the last gradient, that it fits."""
    found: list[tf.Tensor | None] = [None] * len(forward)
    position = 0
    for gradient in dict.fromkeys(map(_Key, gradients)):
        fitting = (i for i in range(position, len(forward)) if _fits(gradient.tensor, forward[i]))
        fitted = next(fitting, None)
        if fitted is not None:
            found[fitted] = gradient.tensor
            position = fitted + 1
    return tuple(found)


class _Key:
    """A tensor, which itself cannot be hashed."""

    def __init__(self, tensor: tf.Tensor) -> None:
        self.tensor = tensor

    def __hash__(self) -> int:
        return id(self.tensor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.tensor is self.tensor


def _fits(gradient: tf.Tensor, operand: tf.Tensor) -> bool:
    return bool(gradient.dtype == operand.dtype.base_dtype and gradient.shape.is_compatible_with(operand.shape))
