"""The variables that an optimizer, a model or a session trains, as tools read them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from amanda.core import switches
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import variables


class Trained(NamedTuple):
    """A variable that a program trains."""

    key: object  # as of `VariableValue`
    name: str
    value: Callable[[], Any]  # an array of numpy, now
    is_frozen: bool = False  # now: Keras' `trainable` is False


class SessionOptimizer:
    """The variables that a session updates in one run, by `operators` of optimizers of TensorFlow 1."""

    def __init__(self, session: Any, operators: Sequence[Any]) -> None:
        self._session = weakref.ref(session)
        known = {variable.op.name: variable for variable in session.graph.get_collection("variables")}
        names = dict.fromkeys(op.inputs[0].op.name for op in operators)
        self.trained = [self._trained(known[name]) for name in names if name in known]

    def _trained(self, variable: Any) -> Trained:
        symbol = variable.handle if hasattr(variable, "handle") else variable.op.outputs[0]
        found = variables.variable_behind(symbol) or variables.variable_of(symbol)
        assert found is not None
        return Trained(found.key, found.name, lambda: self._read(variable))

    def _read(self, variable: Any) -> Any:
        session = self._session()
        with switches.disabled():
            return None if session is None else session.run(variable)


def trained_by(owner: Any) -> list[Trained] | None:
    """Those of a model, a layer, a module, an optimizer of Keras, or a `SessionOptimizer`. None if it is none of them."""
    if isinstance(owner, SessionOptimizer):
        return owner.trained
    found = port.trained_by_keras(owner)
    if found is None:
        found = getattr(owner, "trainable_variables", None)
    return None if found is None else [_trained(each) for each in found]


def schedule_of(optimizer: Any) -> Callable[[int], float] | None:
    """The learning rate of each step, from 0 on, of an optimizer of Keras with a schedule of Keras. None for others: to
    call a schedule of the program might change something."""
    schedule = port.keras_schedule(optimizer)

    def rate(step: int) -> float:
        with port.eagerly(), switches.own_work():
            return float(schedule(step))

    return None if schedule is None else rate


def rate_of(optimizer: Any) -> float | None:
    """The learning rate of an optimizer of Keras, now. None if it has a schedule."""
    rate = port.keras_rate(optimizer)
    return None if rate is None else float(_read(rate))


def steps_of(optimizer: Any) -> int:
    """How many steps an optimizer of Keras has made."""
    with port.eagerly(), switches.own_work():
        return int(optimizer.iterations)


def kept_by(optimizer: Any) -> int:
    """How many variables an optimizer of Keras keeps for those that it trains, such as averages of gradients."""
    return port.kept_by_keras(optimizer)


def _trained(variable: Any) -> Trained:
    value = variables.value_of(variable)
    assert value is not None
    return Trained(value.key, value.name, lambda: _read(variable), not getattr(variable, "trainable", True))


def _read(variable: Any) -> Any:
    with port.eagerly(), switches.own_work():
        return variable.numpy()
