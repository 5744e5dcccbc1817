"""optimizer-made-anew."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from amanda.toolkit import Place

from ..rule import Rule, Step

LEAST = 4  # optimizers


@dataclasses.dataclass
class _Made:
    place: Place
    name: str
    is_alive: Callable[[], object]  # the parameter that the key names
    optimizers: int = 0
    steps: int = 0


class OptimizerMadeAnew(Rule):
    """The optimizer is made anew for each step. Its memory of the steps before begins with zeros each time: the
    averages of Adam, the momentum of SGD, and the count of a learning rate schedule. Adam then changes each parameter by
    the whole learning rate, in the direction of the last gradient's sign.

    It reports four optimizers or more of one class that step at one line, each once, for the same parameters. An SGD
    without momentum keeps nothing, and is no finding.
    """

    name = "optimizer-made-anew"
    sentence = "the optimizer is made anew for each step"
    fix = "make it once, before the loop"
    bad = """
        for _ in range(5):
            optimizer = torch.optim.Adam(model.parameters())
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    good = """
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            plain = torch.optim.SGD(model.parameters(), 0.1)
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            plain.step()
            optimizer.zero_grad()
    """

    def begin(self) -> None:
        self._made: dict[tuple[str, str, Hashable], _Made] = {}
        self._all: list[_Made] = []
        self._of: weakref.WeakKeyDictionary[Any, _Made] = weakref.WeakKeyDictionary()

    def after_step(self, step: Step) -> None:
        optimizer = step.optimizer
        known = self._of.get(optimizer)
        if known is not None:
            known.steps += 1
        elif step.number == 0 and len(step.parameters) and any(map(len, optimizer.state.values())):
            has_more = any(any(value is not None for value in one.values()) for one in optimizer.state.values())
            if has_more:
                first = step.parameters[0]
                self._add(optimizer, step.place, (id(first), len(step.parameters)), weakref.ref(first))

    def after_keras_step(self, optimizer: Any, steps: int, place: Callable[[], Place]) -> None:
        from amanda.toolkit.tensorflow import kept_by, trained_by

        known = self._of.get(optimizer)
        if known is not None:
            known.steps += 1
        elif steps == 1 and kept_by(optimizer):
            trained = trained_by(optimizer) or ()
            self._add(optimizer, place(), (*(one.key for one in trained[:1]), len(trained)), lambda: self)

    def _add(self, optimizer: Any, place: Place, parameters: Hashable, is_alive: Callable[[], object]) -> None:
        key = (place.name, place.source, parameters)
        made = self._made.get(key)
        if made is None or made.is_alive() is None:  # of another model, whose parameter was at the same address
            made = self._made[key] = _Made(place, type(optimizer).__name__, is_alive)
            self._all.append(made)
        made.optimizers += 1
        made.steps += 1
        self._of[optimizer] = made

    def at_end(self, ended_well: bool) -> None:
        for made in self._all:
            if made.optimizers >= LEAST and made.steps == made.optimizers:
                what = f"{made.optimizers} of class {made.name} took one step each, for the same parameters"
                self.found(made.place, what, count=made.optimizers)
        self.begin()
