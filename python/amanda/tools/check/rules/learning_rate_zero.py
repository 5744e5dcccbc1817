"""learning-rate-zero."""

from __future__ import annotations

import bisect
import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

from amanda.toolkit import Place

from ..rule import Rule, Step

LEAST = 3  # steps in a row, up to the end
TINY = 1e-6  # of the largest rate
MOSTLY = 0.5  # of the steps, for a rate that is tiny


class LearningRateZero(Rule):
    """The learning rate of all groups of an optimizer has become zero, and it steps on: three times or more, up to the end
    of the program. The schedule is shorter than the training, as one that was made for the steps of an epoch, or that steps
    more often than the optimizer. A rate that was zero from the beginning is no finding. A rate that is a millionth of the
    largest one counts as zero if it is so for half of the steps, as where a `StepLR` of epochs steps with each batch. In
    TensorFlow it looks at the
    schedules of Keras, such as a CosineDecay whose `decay_steps` are epochs.
    """

    name = "learning-rate-zero"
    sentence = "the optimizer steps with a learning rate of zero, or almost zero"
    fix = (
        "give the schedule the number of all steps of the optimizer, not of epochs, and call scheduler.step() once for "
        "each; one that counts epochs steps once in each epoch"
    )
    bad = """
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=4)
        for _ in range(8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            scheduler.step()
    """
    good = """
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=8)
        for _ in range(8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            scheduler.step()
    """

    def begin(self) -> None:
        self._rates: weakref.WeakKeyDictionary[Any, _Rates] = weakref.WeakKeyDictionary()
        self._all: list[_Rates] = []  # also of optimizers that are gone
        self._scheduled: weakref.WeakKeyDictionary[Any, _Scheduled | None] = weakref.WeakKeyDictionary()
        self._all_scheduled: list[_Scheduled] = []

    def before_step(self, step: Step) -> None:
        rates = self._rates.get(step.optimizer)
        if rates is None:
            rates = self._rates[step.optimizer] = _Rates()
            self._all.append(rates)
        rates.steps += 1
        rates.see_tiny(step)
        if any(_is_more(group.get("lr")) for group in step.optimizer.param_groups):
            rates.had_more, rates.zero = True, 0
            return
        rates.zero += 1
        if rates.place is None and rates.had_more:
            rates.place = step.place

    def after_keras_step(self, optimizer: Any, steps: int, place: Callable[[], Place]) -> None:
        from amanda.toolkit.tensorflow import schedule_of

        if optimizer not in self._scheduled:
            rate = schedule_of(optimizer)
            known = self._scheduled[optimizer] = None if rate is None else _Scheduled(rate, place())
            if known is not None:
                self._all_scheduled.append(known)
        scheduled = self._scheduled[optimizer]
        if scheduled is not None:
            scheduled.steps = steps

    def at_end(self, ended_well: bool) -> None:
        for one in self._all_scheduled:
            first = one.first_of_zero()
            if 0 < first <= one.steps - LEAST:
                evidence = f"it has become 0 after {first} of {one.steps} steps"
                self.found(one.place, evidence, count=one.steps - first)
        for rates in self._all:
            if rates.place is not None and rates.zero >= LEAST:
                evidence = f"it has become 0 after {rates.steps - rates.zero} of {rates.steps} steps"
                self.found(rates.place, evidence, count=rates.zero)
            elif rates.tiny_place is not None and rates.tiny >= max(LEAST, MOSTLY * rates.steps):
                first = rates.steps - rates.tiny
                evidence = (
                    f"it was {rates.most:.3g}, and has become {rates.last:.1e} after {first} of {rates.steps} steps"
                )
                self.found(rates.tiny_place, evidence, count=rates.tiny)
        self.begin()


@dataclasses.dataclass
class _Rates:
    steps: int = 0
    zero: int = 0  # steps in a row with a rate of zero
    had_more: bool = False
    place: Place | None = None
    most: float = 0.0
    last: float = 0.0
    tiny: int = 0  # steps in a row with a rate that is tiny
    tiny_place: Place | None = None

    def see_tiny(self, step: Step) -> None:
        rates = [group.get("lr") for group in step.optimizer.param_groups]
        if not all(isinstance(one, (int, float)) for one in rates):
            return
        now = max(rates, default=0.0)
        self.most = max(self.most, now)
        if now > self.most * TINY:
            self.tiny, self.tiny_place = 0, None
            return
        if not self.tiny:
            self.last = now
        self.tiny += 1
        if self.tiny_place is None and self.most:
            self.tiny_place = step.place


@dataclasses.dataclass
class _Scheduled:
    rate: Callable[[int], float]
    place: Place
    steps: int = 0

    def first_of_zero(self) -> int:
        """The first step from which on the rate is zero; `steps` if it is not zero at the end."""
        if not self.steps or self.rate(self.steps - 1):
            return self.steps
        return bisect.bisect_left(range(self.steps), True, key=lambda step: self.rate(step) == 0)


def _is_more(rate: Any) -> bool:
    """A rate that is a tensor on a device is not read."""
    if getattr(rate, "device", None) is not None and rate.device.type != "cpu":
        return True
    return rate is None or float(rate) != 0
