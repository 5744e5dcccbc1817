"""schedule-by-epoch."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from amanda.toolkit import Place

from ..rule import Rule, Step

LOOKS_AT = (1, 7)  # steps of an optimizer, for schedulers
LEAST = 2  # steps of the scheduler


class ScheduleByEpoch(Rule):
    """The learning rate follows a schedule that is made for steps of the optimizer, and the scheduler steps once in each
    epoch. So training ends in the warm-up. The schedules are ``OneCycleLR``, and those of transformers, which are made for
    `num_training_steps`.

    It reports a schedule for as many steps as the optimizer has taken at the end, of which the scheduler has taken every
    n-th. Training that ended early is no finding.
    """

    name = "schedule-by-epoch"
    sentence = "the learning-rate schedule is for steps of the optimizer, and the scheduler steps once in each epoch"
    fix = "call scheduler.step() after each optimizer.step(); or make the schedule for the number of epochs"
    bad = """
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=3, steps_per_epoch=4)
        for epoch in range(3):
            for _ in range(4):
                optimizer.zero_grad()
                F.cross_entropy(model(x), labels).backward()
                optimizer.step()
            scheduler.step()
    """
    good = """
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=3, steps_per_epoch=4)
        for epoch in range(3):
            for _ in range(4):
                optimizer.zero_grad()
                F.cross_entropy(model(x), labels).backward()
                optimizer.step()
                scheduler.step()
    """

    def begin(self) -> None:
        self._schedules: list[_Schedule] = []

    def after_step(self, step: Step) -> None:
        if step.number in LOOKS_AT:
            from ..schedulers import schedulers_of

            known = {id(one.scheduler()) for one in self._schedules}
            for scheduler in schedulers_of(step.optimizer):
                planned = _planned(scheduler)
                if planned and id(scheduler) not in known:
                    both = weakref.ref(scheduler), weakref.ref(step.optimizer)
                    self._schedules.append(_Schedule(*both, planned, type(scheduler).__name__, step.place))
        for one in self._schedules:
            if one.optimizer() is step.optimizer:
                one.steps = step.number + 1
                one.see()

    def at_end(self, ended_well: bool) -> None:
        for one in self._schedules:
            one.see()
            one.taken += one.scheduler() is None  # since the optimizer's last step
            every, rest = divmod(one.steps, max(one.taken, 1))
            if ended_well and one.steps == one.planned and one.taken >= LEAST and every > 1 and not rest:
                what = f"{one.name} is made for {one.planned} steps: the optimizer has taken {one.steps}"
                self.found(one.place, f"{what}, the scheduler {one.taken}")
        self.begin()


@dataclasses.dataclass
class _Schedule:
    scheduler: weakref.ref[Any]
    optimizer: weakref.ref[Any]
    planned: int  # steps
    name: str
    place: Place
    steps: int = 0  # of the optimizer
    taken: int = 0  # of the scheduler

    def see(self) -> None:
        self.taken = getattr(self.scheduler(), "last_epoch", self.taken)


def _planned(scheduler: Any) -> int:
    """The steps of the optimizer that a schedule is made for; 0 if it may be one for epochs."""
    if type(scheduler).__name__ == "OneCycleLR":
        return int(scheduler.total_steps)
    for function in getattr(scheduler, "lr_lambdas", ()):
        planned = (getattr(function, "keywords", None) or {}).get("num_training_steps")
        if isinstance(planned, int):
            return planned
    return 0
