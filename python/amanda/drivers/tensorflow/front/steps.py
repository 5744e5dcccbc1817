"""Steps of optimizers: Keras', eager or in functions, and those of TensorFlow 1 in sessions.

An optimizer of Keras counts its steps in a variable. It is read when a call from eager code is over, of a function or of
the optimizer: a function may step in a branch, or not at all.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda.core import switches
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import loss_scales, variable_gradients
from amanda.drivers.tensorflow.view.trained import SessionOptimizer

UPDATES = re.compile(r"(Resource|Sparse|ResourceSparse)?Apply[A-Z]\w*")  # operators of TensorFlow 1's optimizers
_ATTRIBUTE = "_amanda_optimizers"  # of a session


class _Listener(NamedTuple):
    before: Callable[[Any], object]
    after: Callable[[Any], object]


_listeners: list[_Listener] = []
_steps: weakref.WeakKeyDictionary[Any, int] = (
    weakref.WeakKeyDictionary()
)  # of Keras' optimizers, those that listeners know


def watch() -> None:
    """Notes optimizers of Keras from now on; called when Keras is imported, because a function may be traced once."""
    for patchable, replacement in (
        (port.keras_step(), _step),
        (port.keras_apply(), _apply),
        (port.keras_update(), _update),
    ):
        if patchable.owner is not None:
            patchable.replace(functools.partialmethod(replacement, patchable.original))
    loss_scales.watch()


def listen(before: Callable[[Any], object], after: Callable[[Any], object]) -> Callable[[], None]:
    """See `amanda.driver.protocol.Driver.listen_to_optimizers`."""
    if not _listeners:
        for optimizer in list(_steps):
            _steps[optimizer] = _number(optimizer)
        for patchable in (port.call_function, port.call_concrete):
            patchable.replace(_reporting(patchable.original))
        port.run_feeds.replace(_run)
    listener = _Listener(before, after)
    _listeners.append(listener)

    def stop() -> None:
        _listeners.remove(listener)
        if not _listeners:
            for patchable in (port.call_function, port.call_concrete, port.run_feeds):
                patchable.restore()

    return stop


def _step(self: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of `Optimizer.apply` of Keras."""
    result = original(self, *args, **kwargs)
    _report()
    return result


def _apply(self: Any, original: Callable[..., Any], gradients: Any, trained: Any) -> Any:
    """In place of what it calls once the optimizer has its variables. A first trace may create them, and is repeated."""
    with port.eagerly():
        if _are_initialized(trained):
            if self not in _steps:
                _steps[self] = _number(self)
            _begins(self)
    return original(self, gradients, trained)


def _update(self: Any, original: Callable[..., Any], gradients: Any, trained: Any, *args: Any) -> Any:
    """In place of what gets the gradients, clipped and accumulated."""
    gradients, trained = list(gradients), list(trained)
    variable_gradients.note_given(gradients, trained)
    return original(self, gradients, trained, *args)


def _begins(optimizer: Any) -> None:
    for listener in list(_listeners):
        listener.before(optimizer)


def _ends(optimizer: Any) -> None:
    for listener in list(_listeners):
        listener.after(optimizer)


def _number(optimizer: Any) -> int:
    with port.eagerly(), switches.own_work():
        return int(optimizer.iterations)


def _are_initialized(trained: Sequence[Any]) -> bool:
    with switches.own_work():
        return all(tf.raw_ops.VarIsInitializedOp(resource=variable.handle).numpy() for variable in trained)


def _reporting(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        _report()
        return result

    return called


def _report() -> None:
    """Calls the listeners for steps that have ended, where eager code goes on."""
    if not tf.executing_eagerly():
        return
    for optimizer, known in list(_steps.items()):
        number = _number(optimizer)
        if number != known:
            _steps[optimizer] = number
            _ends(optimizer)


@functools.wraps(port.run_feeds.original)
def _run(self: Any, handle: Any, targets: Any, fetches: Any, *args: Any) -> Any:
    """Runs a session, in place of its own method."""
    optimizer = _optimizer_of(self, [*targets, *(fetch.op for fetch in fetches)])
    if optimizer is None:
        return port.run_feeds.original(self, handle, targets, fetches, *args)
    _begins(optimizer)
    result = port.run_feeds.original(self, handle, targets, fetches, *args)
    _ends(optimizer)
    return result


def _optimizer_of(session: Any, roots: Sequence[Any]) -> SessionOptimizer | None:
    """The variables that a run updates; None if it runs no operator of an optimizer."""
    known: dict[tuple[str, ...], SessionOptimizer | None] = session.__dict__.setdefault(_ATTRIBUTE, {})
    key = tuple(op.name for op in roots)
    if key not in known:
        found = [op for op in _reached(roots) if UPDATES.fullmatch(op.type)]
        known[key] = SessionOptimizer(session, found) if found else None
    return known[key]


def _reached(roots: Sequence[Any]) -> Iterator[Any]:
    waiting, seen = list(roots), set(roots)
    while waiting:
        op = waiting.pop()
        yield op
        for other in (*(each.op for each in op.inputs), *op.control_inputs):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
