"""optimizer-recreated."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from amanda.toolkit import Place

from ..rule import Load, Rule, Step

LEAST = 3  # times


class OptimizerRecreated(Rule):
    """A new optimizer is made in each epoch, or in each step, for the same parameters and with the same learning rate. Its
    state is lost each time: momentum, and the averages of Adam, which begin again with large steps.

    It reports three new ones or more at one line. An optimizer without a state, as `SGD` without momentum, is no finding,
    nor is one for weights that were loaded before, as in federated learning. One for each task, or fold, may be meant.
    """

    name = "optimizer-recreated"
    sentence = "a new optimizer takes over, without the state of the last one"
    fix = "make the optimizer once, before the loop over epochs"
    is_advice = True
    only_first_steps = True
    bad = """
        for epoch in range(5):
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(model(x), labels).backward()
                optimizer.step()
    """
    good = """
        begin = {name: one.clone() for name, one in model.state_dict().items()}
        for fold in range(5):
            model.load_state_dict(begin)
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(model(x), labels).backward()
                optimizer.step()
    """

    def begin(self) -> None:
        self._made: dict[tuple[Any, ...], _Made] = {}
        self._all: list[_Made] = []  # also of parameters that are gone, whose ids others get

    def before_step(self, step: Step) -> None:
        if not step.parameters or not _has_state(step.optimizer) or step.optimizer.state:
            return
        rates = tuple(group.get("lr") for group in step.optimizer.param_groups)
        key = (step.place, type(step.optimizer), rates, *map(id, step.parameters[:1]))
        made = self._made.get(key)
        if made is None or made.parameter() is not step.parameters[0]:
            parameter = weakref.ref(step.parameters[0])
            made = self._made[key] = _Made(step.place, type(step.optimizer).__name__, parameter)
            self._all.append(made)
        made.count += 1

    def after_load(self, load: Load) -> None:
        self.begin()

    def at_end(self, ended_well: bool) -> None:
        for one in self._all:
            if one.count > LEAST:
                self.found(one.place, f"{one.name} was made {one.count} times for the same parameters", count=one.count)
        self.begin()


@dataclasses.dataclass
class _Made:
    place: Place
    name: str
    parameter: weakref.ref[Any]  # the first one
    count: int = 0


def _has_state(optimizer: Any) -> bool:
    return any(group.get("momentum") or "betas" in group or "alpha" in group for group in optimizer.param_groups)
