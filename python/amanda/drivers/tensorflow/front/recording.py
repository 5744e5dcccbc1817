"""Makes the result of a program differentiable, for `amanda.points`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


@contextlib.contextmanager
def recorded() -> Iterator[Callable[[object], bool]]:
    """A context of a run of a program that uses trainable variables. Nothing is recorded in a v1 graph: its gradients,
    if it has some, are operators of the graph."""
    if not tf.executing_eagerly():
        yield lambda result: False
        return
    with tf.GradientTape() as tape:
        yield lambda result: _differentiate(tape, result)


def _differentiate(tape: tf.GradientTape, result: Any) -> bool:
    targets = [
        value
        for value in tf.nest.flatten(result, expand_composites=True)
        if isinstance(value, tf.Tensor) and (value.dtype.is_floating or value.dtype.is_complex)
    ]
    variables = tape.watched_variables()
    if not targets or not variables:
        return False
    with tape.stop_recording():
        gradients = tape.gradient(targets, variables)
    return any(gradient is not None for gradient in gradients)
