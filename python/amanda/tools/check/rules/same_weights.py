"""same-weights."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

from amanda.toolkit import Place, own_work

from ..gradients import few, names
from ..rule import Rule, Step

SECOND = 2  # step at which suspects are looked at once more
CLOSE = 1e-4  # of the largest gradient: sums of another order round otherwise


class SameWeights(Rule):
    """All rows of a weight are equal, as after `nn.init.constant_`, and so are all rows of its gradient: the units of the
    layer stay the same, and do the work of one.

    It looks at weights of two axes or more, at the first step and at the third. A weight of zeros is no finding if its rows
    get other gradients, as in LoRA and at the end of residual branches. Nor is one whose gradient is zero: `amanda
    gradients` names that. LSTMs and GRUs, whose gates differ, are not found. In Keras, where the last axis is that of the
    units, it looks at weights after two steps, and says nothing of those that have not changed in between.
    """

    name = "same-weights"
    sentence = "all units of a layer are the same, and get the same gradient"
    fix = "begin with random weights, such as those that nn.Linear begins with: constants are for biases and normalizations"
    bad = """
        for one in model.parameters():
            nn.init.constant_(one, 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x).sum(1), x[:, 0])
            loss.backward()
            optimizer.step()
    """
    good = """
        nn.init.zeros_(model[0].weight)
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x).sum(1), x[:, 0])
            loss.backward()
            optimizer.step()
    """

    def begin(self) -> None:
        self._suspects: weakref.WeakKeyDictionary[Any, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()
        self._of_keras: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()

    def before_step(self, step: Step) -> None:
        if not step.has_closure:
            self._look_at(step)

    def after_step(self, step: Step) -> None:
        if step.has_closure:
            self._look_at(step)

    def after_keras_step(self, optimizer: Any, steps: int, place: Callable[[], Place]) -> None:
        seen = self._of_keras.get(optimizer)
        if seen is not None and (not seen.weights or steps < seen.steps + SECOND):
            return
        from amanda.toolkit.tensorflow import trained_by

        with own_work():
            weights = {
                one.name: one.value() for one in trained_by(optimizer) or () if seen is None or one.name in seen.weights
            }
        same = {name: weight.copy() for name, weight in weights.items() if _has_equal_units(weight)}
        if seen is None:
            self._of_keras[optimizer] = _Seen(steps, same)
            return
        changed = [name for name, weight in same.items() if (weight != seen.weights[name]).any()]
        seen.weights.clear()
        if changed:
            self.found(place(), f"all columns of {few(changed)} are equal, also after {steps} steps")

    def _look_at(self, step: Step) -> None:
        if step.number == 0:
            given: list[Any] = step.parameters
        elif step.number == SECOND and step.optimizer in self._suspects:
            given = [one() for one in self._suspects.pop(step.optimizer)]
        else:
            return
        with own_work():  # tools see no operators of a hook
            same = [one for one in given if one is not None and self._is_same(one)]
        if same and step.number == 0:
            self._suspects[step.optimizer] = [weakref.ref(one) for one in same]
        elif same:
            self.found(step.place, f"all rows of {names(same)} are equal, and all rows of their gradients")

    def _is_same(self, parameter: Any) -> bool:
        if parameter.grad is None or parameter.dim() < 2 or parameter.shape[0] < 2 or not parameter[0].numel():
            return False
        return bool(self.read(parameter.detach(), _are_equal)) and bool(self.read(parameter.grad.detach(), _are_alike))


@dataclasses.dataclass
class _Seen:
    """The suspects of an optimizer of Keras."""

    steps: int
    weights: dict[str, Any]


def _has_equal_units(weight: Any) -> bool:
    if weight.ndim < 2 or weight.shape[-1] < 2 or not weight.size:
        return False
    is_close = abs(weight - weight[..., :1]) <= CLOSE * abs(weight).max()
    return bool(is_close.all())


def _are_equal(plain: Any) -> bool:
    return bool((plain[0] == plain[-1]).all()) and bool((plain == plain[:1]).all())


def _are_alike(plain: Any) -> bool:
    largest = plain.abs().max()
    return bool(largest > 0) and bool(((plain - plain[:1]).abs() <= CLOSE * largest).all())
