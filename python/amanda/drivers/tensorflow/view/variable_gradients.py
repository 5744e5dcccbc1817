"""Gradients of variables, and losses: which values of a program are some, in graphs and in eager code.

Tapes and `tf.gradients` return gradients, and optimizers of Keras get them, perhaps clipped. A graph remembers its own from
the time this module is loaded, because a session may run it in a scope later.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from amanda.driver.protocol import VariableValue
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import differentiated, variables
from amanda.drivers.tensorflow.view.differentiated import Sought

_ATTRIBUTE = "_amanda_roles"  # of a graph. (A table that is keyed by graphs would keep them alive.)


class Role(NamedTuple):
    """The role of a value in a training step."""

    kind: Literal["gradient", "given", "loss"]  # "given": what an optimizer gets
    variable: VariableValue | None = None  # whose gradient it is
    is_sparse: bool = False  # it has the slices of a tf.IndexedSlices alone
    number: int = 0  # of a value of a graph: no other one has it


Listener = Callable[[Role, Any], object]

_listeners: list[Listener] = []
_numbers = itertools.count(1)


def roles_of(symbol: Any) -> Sequence[Role]:
    """The roles of a symbol of a graph."""
    if not isinstance(symbol, tf.Tensor) or port.is_eager(symbol):
        return ()
    known: dict[str, list[Role]] = getattr(symbol.graph, _ATTRIBUTE, {})
    return known.get(symbol.name, ())


def listen(listener: Listener) -> Callable[[], None]:
    """Calls `listener(role, array)` for the values of eager code, while a scope is open. The result ends that."""
    _listeners.append(listener)
    return functools.partial(_listeners.remove, listener)


def patch() -> None:
    """Remembers what `tf.gradients` returns from now on."""
    port.build_gradients.replace(build)


def build(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
    """TensorFlow's function behind `tf.gradients`."""
    found = port.build_gradients.original(ys, xs, *args, **kwargs)
    if kwargs.get("src_graph") is None:  # else it is the gradient of a whole function
        wanted = xs if isinstance(xs, list | tuple) else [xs]
        values = [_value_of(each) for each in wanted]
        note_gradients(ys, values, found)
        sought = zip(values, found, strict=True)
        differentiated.note(
            ys,
            [Sought(value, one is not None, True, True) for value, one in sought if value is not None],
            has_tape=False,
        )
    return found


def note_of_tape(
    tape: Any, targets: Any, sources: Sequence[Any], found: Sequence[Any], asked: Sequence[Any] = ()
) -> None:
    """Notes the gradients that a tape has computed. `asked`: the program's sources, with variables themselves."""
    watched = {id(variable.handle): variable for variable in tape.watched_variables()}
    values = [watched.get(id(source)) for source in sources]
    note_gradients(targets, [None if each is None else variables.value_of(each) for each in values], found)
    if len(asked) == len(sources):
        both = list(zip(asked, sources, found, strict=True))
        tensors = [
            one
            for one, _, gradient in both
            if gradient is None and isinstance(one, tf.Tensor) and one.dtype.is_floating
        ]
        sought = [_sought(one, source, gradient, watched) for one, source, gradient in both if hasattr(one, "handle")]
        given = {id(source) for source in sources}
        others = [variables.value_of(one) for key, one in watched.items() if key not in given]
        differentiated.note(targets, filter(None, sought), has_tape=True, others=filter(None, others), tensors=tensors)


def _sought(variable: Any, source: Any, gradient: Any, watched: Container[int]) -> Sought | None:
    value = variables.value_of(variable)
    is_trainable = bool(getattr(variable, "trainable", True))
    is_regularized = getattr(variable, "regularizer", None) is not None
    if value is None:
        return None
    return Sought(value, gradient is not None, is_trainable, id(source) in watched, is_regularized)


def note_gradients(targets: Any, values: Iterable[VariableValue | None], found: Iterable[Any]) -> None:
    targets = targets if isinstance(targets, list | tuple) else [targets]
    if len(targets) == 1:
        _note(Role("loss"), targets[0])
    for value, gradient in reversed(list(zip(values, found, strict=True))):  # about as they are computed
        if value is not None:
            _note(Role("gradient", value), gradient)


def note_given(gradients: Iterable[Any], trained: Iterable[Any]) -> None:
    """Notes the gradients that an optimizer of Keras gets."""
    for gradient, variable in zip(gradients, trained, strict=True):
        value = _value_of(variable)
        if value is not None:
            _note(Role("given", value), gradient)


def _note(role: Role, value: Any) -> None:
    if isinstance(value, tf.IndexedSlices):
        role, value = role._replace(is_sparse=True), value.values
    if not isinstance(value, tf.Tensor):
        return
    if port.is_eager(value):
        for listener in list(_listeners):
            listener(role, port.array_of(value))
        return
    known = getattr(value.graph, _ATTRIBUTE, None)
    if known is None:
        known = {}
        setattr(value.graph, _ATTRIBUTE, known)
    known.setdefault(value.name, []).append(role._replace(number=next(_numbers)))


def _value_of(x: Any) -> VariableValue | None:
    """The value of a variable. `x`: the variable, its resource, or the tensor that a variable of TensorFlow 1 is."""
    if hasattr(x, "handle"):
        return variables.value_of(x)
    return variables.variable_behind(x) if getattr(x, "dtype", None) == tf.resource else variables.variable_of(x)
