"""The gradients of taps: what TensorFlow differentiates after they were inserted.

Gradients pass an edit straight through, to the value that was edited. A replacement's is that of the operator it replaced,
of the values that it was given and gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import links

_EDITS = "_amanda_edits"
_ORIGINAL = "_amanda_original"


def passes_through(tap: tf.Operation, new: tf.Tensor, old: tf.Tensor) -> None:
    """Notes that a tap edits: `new` is the edited value of `old`."""
    edits = getattr(tap, _EDITS, None)
    if edits is None:
        edits = {}
        setattr(tap, _EDITS, edits)
    edits[new.value_index] = next(index for index, tensor in enumerate(tap.inputs) if tensor is old)


def replaces(tap: tf.Operation, original: tf.Operation, given: list[int]) -> None:
    """Notes that a tap replaces an operator. `given`: the indices of the original's inputs that the tap gets."""
    setattr(tap, _ORIGINAL, (original, given))


def edited_by(tap: tf.Operation) -> dict[int, int]:
    """For each of the tap's results, the argument that it was made of."""
    return getattr(tap, _EDITS, {})


def original_of(tap: tf.Operation) -> tf.Operation | None:
    """The operator that the tap replaces."""
    original: tf.Operation | None = getattr(tap, _ORIGINAL, (None,))[0]
    return original


def register() -> None:
    """Called once: TensorFlow keeps the registration for ever."""
    tf.RegisterGradient("AmandaTap")(_gradient)


def _gradient(tap: tf.Operation, *incoming: Any) -> list[Any]:
    returned: list[Any] = [None] * len(tap.inputs)
    if replaced := getattr(tap, _ORIGINAL, None):
        original, given = replaced
        of_original = _gradient_of(Replaced(tap, original, given), original, incoming)
        for index, position in enumerate(given):
            returned[index] = of_original[position]
    for output, index in edited_by(tap).items():
        returned[index] = incoming[output]
    return returned


def _gradient_of(replaced: Replaced, original: tf.Operation, incoming: Any) -> Sequence[Any]:
    function = port.gradient_function.original(original)
    if function is None:
        return [None] * len(original.inputs)
    returned = links.watch(original, incoming, lambda: function(replaced, *incoming))
    return returned if isinstance(returned, (list, tuple)) else [returned]


class Replaced:
    """An operator with the operands of its replacement, for its gradient function."""

    def __init__(self, tap: tf.Operation, original: tf.Operation, given: list[int]) -> None:
        self._original = original
        self.inputs, self.outputs = list(original.inputs), tap.outputs
        for index, position in enumerate(given):
            self.inputs[position] = tap.inputs[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
