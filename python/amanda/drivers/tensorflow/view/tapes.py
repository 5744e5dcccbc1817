"""Links the operators of a tf.GradientTape in a function to their forward operators.

A tape hands a gradient function no operator, only what it has recorded: so the operator is recorded, too, as an attribute
more. Only operators of graphs are recorded in Python; those that run eagerly are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import gradient_paths, links

_TAG = "_amanda_forward"


def patch() -> None:
    """Links what tapes compute from now on."""
    for patchable in (port.record_gradient, port.record_gradient_of_backprop):
        patchable.replace(_record)
    port.register_tape_gradient(gradient)


def _record(op_name: str, inputs: Sequence[Any], attributes: Any, outputs: Any) -> Any:
    first = outputs[0] if isinstance(outputs, (list, tuple)) and outputs else outputs
    if isinstance(first, tf.Tensor) and not port.is_eager(first):
        attributes = (*(attributes or ()), _TAG, first.op)
        gradient_paths.note_recorded(first.op)
    return port.record_gradient.original(op_name, inputs, attributes, outputs)


def gradient(
    op_name: str,
    attributes: tuple[Any, ...],
    number_of_inputs: int,
    inputs: Any,
    outputs: Any,
    incoming: Sequence[Any],
    skipped: Any,
    scope: Any,
) -> Any:
    """The function that a tape calls for each operator."""

    def call(attributes: tuple[Any, ...]) -> Any:
        return port.tape_gradient(op_name, attributes, number_of_inputs, inputs, outputs, incoming, skipped, scope)

    if not attributes or len(attributes) < 2 or attributes[-2] is not _TAG:
        return call(attributes)
    forward = attributes[-1]
    if tf.executing_eagerly():
        return call(attributes[:-2])
    return links.watch(forward, incoming, lambda: call(attributes[:-2]))
