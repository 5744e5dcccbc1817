"""scheduler-not-stepped."""

from __future__ import annotations

import weakref
from typing import Any

from amanda.toolkit import Place

from ..rule import Rule, Step

LEAST = 2  # steps of the optimizer


class SchedulerNotStepped(Rule):
    """An optimizer has a learning-rate scheduler, and the scheduler never steps, so that the learning rate of the first
    step is used in all. It looks when the program has ended, at schedulers that are still there: not at those of a function
    that has returned."""

    name = "scheduler-not-stepped"
    sentence = "the learning-rate scheduler never steps"
    fix = "call scheduler.step() after optimizer.step(), or once per epoch"
    bad = """
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
    """
    good = """
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
        scheduler.step()  # of an epoch
    """

    def begin(self) -> None:
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._schedulers: dict[int, tuple[weakref.ref[Any], weakref.ref[Any], Place]] = {}

    def after_step(self, step: Step) -> None:
        self._steps[step.optimizer] = step.number + 1
        if step.number == LEAST - 1:
            from ..schedulers import schedulers_of

            for scheduler in schedulers_of(step.optimizer):
                self._schedulers[id(scheduler)] = weakref.ref(scheduler), weakref.ref(step.optimizer), step.place

    def at_end(self, ended_well: bool) -> None:
        for of_scheduler, of_optimizer, place in self._schedulers.values() if ended_well else ():
            scheduler, optimizer = of_scheduler(), of_optimizer()
            if scheduler is not None and optimizer is not None and getattr(scheduler, "_step_count", 2) == 1:
                name, steps = type(scheduler).__name__, self._steps[optimizer]
                self.found(place, f"{name} has not stepped in {steps} steps of the optimizer")
