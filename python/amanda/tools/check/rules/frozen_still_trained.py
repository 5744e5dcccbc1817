"""frozen-still-trained."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

from amanda.toolkit import Place, own_work

from ..gradients import first, name_of
from ..rule import Rule, Step

SAMPLED = 2  # frozen parameters of an optimizer
SAMPLE = 64  # elements of each variable of Keras
LEAST = 2  # steps that change them


class FrozenStillTrained(Rule):
    """A parameter was frozen in the middle of the training, and the optimizer goes on to change it. In PyTorch, a
    parameter whose gradient is left, or was set to zeros, still has weight decay and momentum. In Keras, `fit` goes on
    with the function that it has compiled before ``layer.trainable = False``.

    It compares elements of two parameters in each optimizer that were trained before they were frozen. Those that were
    frozen from the beginning, or are unfrozen again for their own steps, as in adversarial networks, are no finding.
    """

    name = "frozen-still-trained"
    sentence = "a frozen parameter is still changed by its optimizer"
    fix = "set its gradient to None, or make a new optimizer without it; in Keras call compile() after `trainable` was set"
    bad = """
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for epoch in range(6):
            if epoch == 2:
                model[0].requires_grad_(False)
            optimizer.zero_grad(set_to_none=False)
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
    """
    good = """
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for epoch in range(6):
            if epoch == 2:
                model[0].requires_grad_(False)
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
    """

    def begin(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, _Frozen] = weakref.WeakKeyDictionary()  # by optimizer
        self._all: list[_Frozen] = []  # also of optimizers that are gone

    def after_step(self, step: Step) -> None:
        known = self._of(step.optimizer)
        frozen = [one for one in step.parameters if not one.requires_grad and one.grad is not None]
        known.trained.update(id(one) for one in step.parameters if one.requires_grad)
        if frozen:
            values = {id(one): self.read_quietly(one, first) for one in frozen[:SAMPLED] if id(one) in known.trained}
            known.see(values, lambda: (step.place, name_of(frozen[0])))

    def after_keras_step(self, optimizer: Any, steps: int, place: Callable[[], Place]) -> None:
        from amanda.toolkit.tensorflow import trained_by

        known, variables = self._of(optimizer), trained_by(optimizer) or ()
        known.trained.update(one.key for one in variables if not one.is_frozen)
        frozen = [one for one in variables if one.is_frozen and one.key in known.trained]
        if frozen:
            values = {one.key: one.value().reshape(-1)[:SAMPLE] for one in frozen[:SAMPLED]}
            known.see(values, lambda: (place(), frozen[0].name))

    def _of(self, optimizer: Any) -> _Frozen:
        if optimizer not in self._known:
            self._known[optimizer] = _Frozen()
            self._all.append(self._known[optimizer])
        return self._known[optimizer]

    def at_end(self, ended_well: bool) -> None:
        for known in self._all:
            if known.place is not None and known.changes >= LEAST:
                self.found(known.place, f"{known.name} was frozen, and has changed since", count=known.changes)
        self.begin()


@dataclasses.dataclass
class _Frozen:
    trained: set[Any] = dataclasses.field(default_factory=set)  # parameters that were not frozen at some step
    values: dict[Any, Any] = dataclasses.field(default_factory=dict)  # of frozen ones, after the last step
    changes: int = 0
    place: Place | None = None
    name: str = ""

    def see(self, values: dict[Any, Any], described: Callable[[], tuple[Place, str]]) -> None:
        """A step has left these values of parameters that are frozen now."""
        before, self.values = self.values, values
        pairs = [(before[key], value) for key, value in values.items() if key in before]
        with own_work():
            is_changed = any(a is not None and b is not None and bool((a != b).any()) for a, b in pairs)
        self.changes += is_changed
        if is_changed and self.place is None:
            self.place, self.name = described()
