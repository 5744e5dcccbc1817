"""Restores what a run of a program changes in addition to its results: the model's variables, and seeds."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from amanda.core import switches
from amanda.drivers.tensorflow import port


@contextlib.contextmanager
def preserved(program: Any) -> Iterator[None]:
    """A context of a run of `program` in eager mode. See `amanda.points`."""
    if not tf.executing_eagerly():
        yield
        return
    with switches.disabled():
        seeds = port.seeds()
        before = [(variable, variable.numpy()) for variable in _variables_of(program)]
    try:
        yield
    finally:
        with switches.disabled():
            for variable, value in before:
                if not np.array_equal(variable.numpy(), value):
                    variable.assign(value)
            port.restore_seeds(seeds)


def _variables_of(program: Any) -> list[Any]:
    """The variables of the model that is called, itself or through a method, that are not trained: statistics, and the
    state of its random numbers."""
    while isinstance(program, functools.partial):
        program = program.func
    for value in (program, getattr(program, "__self__", None)):
        held = getattr(value, "non_trainable_variables", None)
        if isinstance(held, list | tuple):
            return [variable for variable in held if hasattr(variable, "assign")]
    return []
