"""Gradients that a program has asked for: of what, by which variables, and which of them came.

A graph remembers its own, because a session may run it in a scope later. Those of eager code are passed on at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda.driver.protocol import VariableValue
from amanda.drivers.tensorflow import port

_ATTRIBUTE = "_amanda_differentiated"  # of a graph. (A table that is keyed by graphs would keep them alive.)


class Sought(NamedTuple):
    """A variable of which the gradient was asked for."""

    value: VariableValue
    has_gradient: bool
    is_trainable: bool
    is_watched: bool  # by the tape; true without one
    is_regularized: bool = False  # Keras has a regularizer for it


class Differentiated(NamedTuple):
    """A call of `tape.gradient`, or of `tf.gradients`."""

    targets: tuple[Any, ...]  # tensors
    variables: tuple[Sought, ...]
    has_tape: bool
    others: tuple[VariableValue, ...] = ()  # variables that the tape watched, and that were not asked for
    tensors: tuple[Any, ...] = ()  # those of floats, and no variables, that were asked for and got none


Listener = Callable[[Differentiated], object]

_listeners: list[Listener] = []


def listen(listener: Listener) -> Callable[[], None]:
    """Calls the listener for those of eager code, while a scope is open. The result ends that."""
    _listeners.append(listener)
    return functools.partial(_listeners.remove, listener)


def differentiated_in(symbol: Any) -> Sequence[Differentiated]:
    """Those of the graph that a symbol is in."""
    if not isinstance(symbol, tf.Tensor) or port.is_eager(symbol):
        return ()
    return getattr(symbol.graph, _ATTRIBUTE, ())


def note(
    targets: Any,
    variables: Iterable[Sought],
    *,
    has_tape: bool,
    others: Iterable[VariableValue] = (),
    tensors: Iterable[Any] = (),
) -> None:
    found = [one for one in tf.nest.flatten(targets) if isinstance(one, tf.Tensor)]
    one = Differentiated(tuple(found), tuple(variables), has_tape, tuple(others), tuple(tensors))
    if not found or not (one.variables or one.tensors):
        return
    if port.is_eager(found[0]):
        for listener in list(_listeners):
            listener(one)
        return
    known = getattr(found[0].graph, _ATTRIBUTE, None)
    if known is None:
        known = []
        setattr(found[0].graph, _ATTRIBUTE, known)
    known.append(one)
