"""same-weights."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from amanda.toolkit import Place, own_work

from ..gradients import few, names
from ..rule import Rule, Step

SECOND = 2  # step at which suspects are looked at once more
CLOSE = 1e-4  # of the largest gradient: sums of another order round otherwise
SAMPLE = 8  # elements by which weights that may be equal are found


class SameWeights(Rule):
    """All rows of a weight are equal, as after `nn.init.constant_`, and so are all rows of its gradient: the units of the
    layer stay the same, and do the work of one. Or two weights are equal, and so are their gradients: two layers stay the
    same, such as branches that began with one seed, with one initializer that has a seed, or as copies.

    It looks at weights of two axes or more, at the first step and at the third. A weight of zeros is no finding if its rows
    get other gradients, as in LoRA and at the end of residual branches. Nor is one whose gradient is zero: `amanda
    gradients` names that. Nor are copies that get other gradients, as the layers of `nn.TransformerEncoder`. LSTMs and
    GRUs, whose gates differ, are found only if a whole layer is equal to another. In Keras, where the last axis is that of
    the units, it looks at weights after two steps, and says nothing of those that have not changed in between.
    """

    name = "same-weights"
    sentence = "units or layers are the same, and get the same gradient"
    fix = (
        "begin with random weights, such as those that nn.Linear begins with: constants are for biases and normalizations; "
        "give each layer an initializer with a seed of its own"
    )
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
        alone = {name for name, weight in weights.items() if _has_equal_units(weight)}
        groups = list(_groups(weights, lambda weight: weight.reshape(-1), lambda a, b: bool((a == b).all())))
        if seen is None:
            kept = alone.union(*groups)
            self._of_keras[optimizer] = _Seen(steps, {name: weights[name].copy() for name in kept})
            return
        changed = {name for name, weight in weights.items() if (weight != seen.weights[name]).any()}
        seen.weights.clear()
        if alone & changed:
            names = few([name for name in weights if name in alone & changed])
            self.found(place(), f"all columns of {names} are equal, also after {steps} steps")
        for group in groups:
            if changed.issuperset(group) and alone.isdisjoint(group):
                self.found(place(), f"{few(group)} are equal, also after {steps} steps", key=group[0])

    def _look_at(self, step: Step) -> None:
        if step.number == 0:
            given: list[Any] = step.parameters
        elif step.number == SECOND and step.optimizer in self._suspects:
            given = [one() for one in self._suspects.pop(step.optimizer)]
        else:
            return
        with own_work():  # tools see no operators of a hook
            same = [one for one in given if one is not None and self._is_same(one)]
            alone = set(map(id, same))
            others = {id(one): one for one in given if one is not None and _is_wide(one) and id(one) not in alone}
            groups = [[others[key] for key in group] for group in _groups(others, self._elements, self._stay_equal)]
        if step.number == 0:
            if same or groups:
                self._suspects[step.optimizer] = [
                    weakref.ref(one) for one in (*same, *(one for g in groups for one in g))
                ]
            return
        if same:
            self.found(step.place, f"all rows of {names(same)} are equal, and all rows of their gradients")
        for group in groups:
            self.found(step.place, f"{names(group)} are equal, and their gradients", key=names(group[:1]))

    def _elements(self, parameter: Any) -> Any:
        return self.read(parameter.detach(), lambda plain: plain.reshape(-1))

    def _stay_equal(self, one: Any, other: Any) -> bool:
        if one.dtype != other.dtype or one.device != other.device or one.grad is None or other.grad is None:
            return False
        if not self.read(one.detach(), lambda a: self.read(other.detach(), lambda b: bool((a == b).all()))):
            return False
        return bool(self.read(one.grad, lambda a: self.read(other.grad, lambda b: _are_alike_two(a, b))))

    def _is_same(self, parameter: Any) -> bool:
        if parameter.grad is None or not _is_wide(parameter):
            return False
        return bool(self.read(parameter.detach(), _are_equal)) and bool(self.read(parameter.grad.detach(), _are_alike))


@dataclasses.dataclass
class _Seen:
    """The suspects of an optimizer of Keras."""

    steps: int
    weights: dict[str, Any]


def _groups(
    weights: Mapping[Any, Any], elements: Callable[[Any], Any], are_equal: Callable[[Any, Any], bool]
) -> Iterator[list[Any]]:
    """The keys of weights that are equal: two or more in each list."""
    alike: dict[Hashable, list[Any]] = {}
    for key, weight in weights.items():
        if len(weight.shape) >= 2:
            flat = elements(weight)
            if flat is not None and len(flat) >= SAMPLE:
                alike.setdefault((tuple(weight.shape), *flat[:SAMPLE].tolist()), []).append(key)
    for keys in alike.values():
        group = [keys[0], *(key for key in keys[1:] if are_equal(weights[keys[0]], weights[key]))]
        if len(group) > 1:
            yield group


def _is_wide(parameter: Any) -> bool:
    return bool(parameter.dim() >= 2 and parameter.shape[0] >= 2 and parameter[0].numel())


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


def _are_alike_two(plain: Any, other: Any) -> bool:
    largest = plain.abs().max()
    return bool(largest > 0) and bool(((plain - other).abs() <= CLOSE * largest).all())
