"""scheduler-of-another."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from amanda.toolkit import Place

from ..rule import Rule, Step

LEAST = 2  # steps of the scheduler


class SchedulerOfAnother(Rule):
    """A new optimizer has taken over the parameters of another one, as where layers are unfrozen, and the scheduler still
    changes the learning rate of the old optimizer, which steps no more. A new optimizer with a scheduler of its own is no
    finding, nor is a wrapper that has the groups of the optimizer in it."""

    name = "scheduler-of-another"
    sentence = "the learning-rate scheduler changes an optimizer that no longer steps"
    fix = (
        "make the scheduler anew for the new optimizer; or keep the optimizer, and add what is new by add_param_group()"
    )
    bad = """
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
        for epoch in range(6):
            if epoch == 2:
                optimizer = torch.optim.AdamW(model.parameters(), 0.1)
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            scheduler.step()
    """
    good = """
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
        for epoch in range(6):
            if epoch == 2:
                optimizer = torch.optim.AdamW(model.parameters(), 0.1)
                scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            scheduler.step()
    """

    def begin(self) -> None:
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._replaced: list[_Replaced] = []

    def before_step(self, step: Step) -> None:
        for one in self._replaced:
            one.see(step.optimizer)
        if step.number:
            return
        mine = set(map(id, step.parameters))
        for old in self._optimizers:
            theirs = (id(one) for group in old.param_groups for one in group["params"])
            if not mine.isdisjoint(theirs) and not _shares_groups(old, step.optimizer):
                self._note(old, step)
        self._optimizers.add(step.optimizer)

    def _note(self, old: Any, step: Step) -> None:
        from ..schedulers import schedulers_of

        for scheduler in schedulers_of(old):
            taken = _Replaced(weakref.ref(old), weakref.ref(step.optimizer), weakref.ref(scheduler), step.place)
            taken.names = [type(one).__name__ for one in (scheduler, old, step.optimizer)]
            taken.before = taken.now = getattr(scheduler, "_step_count", 0)
            self._replaced.append(taken)

    def at_end(self, ended_well: bool) -> None:
        for one in self._replaced:
            steps = one.now - one.before
            if steps >= LEAST and not one.is_right:
                evidence = "{} has stepped {} times for {}, since {} took over its parameters"
                self.found(one.place, evidence.format(one.names[0], steps, *one.names[1:]), count=steps)
        self.begin()


@dataclasses.dataclass
class _Replaced:
    old: weakref.ref[Any]
    new: weakref.ref[Any]
    scheduler: weakref.ref[Any]
    place: Place  # the first step of the new optimizer
    names: list[str] = dataclasses.field(default_factory=list)
    before: int = 0  # steps of the scheduler until then
    now: int = 0
    is_right: bool = False  # the old optimizer steps on, or the new one has a scheduler

    def see(self, optimizer: Any) -> None:
        """An optimizer steps. All may be gone at the end of the program."""
        new = self.new()
        if self.old() is optimizer:
            self.is_right = True
        elif new is not None and new is optimizer:
            self.now = getattr(self.scheduler(), "_step_count", self.now)
            self.is_right = self.is_right or any("initial_lr" in group for group in new.param_groups)


def _shares_groups(one: Any, other: Any) -> bool:
    """A wrapper and the optimizer in it: a learning rate that is set for one is that of both."""
    known = set(map(id, other.param_groups))
    return any(id(group) in known for group in one.param_groups)
