"""learning-rate-zero."""

from __future__ import annotations

import bisect
import dataclasses
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from amanda.toolkit import Place

from ..rule import Rule, Step

LEAST = 3  # steps in a row, up to the end
SMALL = 1e-6  # of the largest rate: weights no longer change in float32
MUCH = 1 / 4  # of all steps, if the rate is not zero
SOME = 1 / 50  # of all steps, if it is zero: the last batches of epochs, which `len(data) // batch_size` leaves out
SAMPLES = 16  # steps of a schedule whose rates are compared


class LearningRateZero(Rule):
    """The learning rate of all groups of an optimizer has become zero, and it steps on: three times or more, and in a
    fiftieth of all steps, up to the end of the program. The schedule is shorter than the training, as one that was made
    for the steps of an epoch, or that steps more often than the optimizer. A rate that was zero from the beginning is no
    finding. Or the rate is less than a millionth of its largest value in a quarter of all steps, up to the end: it falls
    in each step by what was meant for an epoch. In TensorFlow it looks at the schedules of Keras, such as a CosineDecay
    whose `decay_steps` are epochs, and at rates that a callback sets, such as ``lr * 0.1**epoch``, which multiplies the
    factors of all epochs.
    """

    name = "learning-rate-zero"
    sentence = "the optimizer steps with a learning rate of zero, or almost"
    fix = (
        "give the schedule the number of all steps of the optimizer, not of epochs; call scheduler.step() once for each"
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
        rates = self._of(step.optimizer)
        rates.see(_largest(group.get("lr") for group in step.optimizer.param_groups), lambda: step.place)

    def after_keras_step(self, optimizer: Any, steps: int, place: Callable[[], Place]) -> None:
        from amanda.toolkit.tensorflow import rate_of, schedule_of

        if optimizer not in self._scheduled:
            rate = schedule_of(optimizer)
            known = self._scheduled[optimizer] = None if rate is None else _Scheduled(rate, place())
            if known is not None:
                self._all_scheduled.append(known)
        scheduled = self._scheduled[optimizer]
        if scheduled is not None:
            scheduled.steps = steps
        else:
            self._of(optimizer).see(rate_of(optimizer), place)

    def _of(self, optimizer: Any) -> _Rates:
        rates = self._rates.get(optimizer)
        if rates is None:
            rates = self._rates[optimizer] = _Rates()
            self._all.append(rates)
        return rates

    def at_end(self, ended_well: bool) -> None:
        for one in self._all_scheduled:
            first = one.first_of_small()
            if first > 0:
                self._judge(one.place, one.steps, one.steps - first, one.rate(one.steps - 1))
        for rates in self._all:
            if rates.place is not None:
                self._judge(rates.place, rates.steps, rates.small, rates.last)
        self.begin()

    def _judge(self, place: Place, steps: int, small: int, last: float) -> None:
        """`small`: steps up to the end."""
        if small >= max(LEAST, steps * (SOME if last == 0 else MUCH)):
            less = "" if last == 0 else ", less than a millionth of the largest,"
            self.found(place, f"it has become {last:.3g}{less} after {steps - small} of {steps} steps", count=small)


@dataclasses.dataclass
class _Rates:
    steps: int = 0
    largest: float = 0.0
    last: float = 0.0
    small: int = 0  # steps in a row with a rate that is zero, or almost
    place: Place | None = None

    def see(self, rate: float | None, place: Callable[[], Place]) -> None:
        """Adds the rate of a step, which is None if it is not known."""
        self.steps += 1
        self.largest = max(self.largest, 0.0 if rate is None else rate)
        if rate is None or rate >= SMALL * self.largest:
            self.small = 0
        if rate is None or not self.largest:
            return
        if rate < SMALL * self.largest:
            self.last, self.small = rate, self.small + 1
            self.place = self.place or place()


@dataclasses.dataclass
class _Scheduled:
    rate: Callable[[int], float]
    place: Place
    steps: int = 0

    def first_of_small(self) -> int:
        """The first step from which on the rate is small; `steps` if it is not small at the end, or in between."""
        if not self.steps:
            return 0
        sampled = [self.steps * part // SAMPLES for part in range(SAMPLES)]
        largest = max(map(self.rate, sampled))
        last = self.rate(self.steps - 1)
        limit = SMALL * largest if last else 0.0

        def is_small(step: int) -> bool:
            rate = self.rate(step)
            return rate == 0 or rate < limit

        if not is_small(self.steps - 1) or not largest:
            return self.steps
        first = bisect.bisect_left(range(self.steps), True, key=is_small)
        return first if all(is_small(step) for step in sampled if step >= first) else self.steps


def _largest(rates: Iterable[Any]) -> float | None:
    """None if one is a tensor on a device, which is not read."""
    known = []
    for rate in rates:
        if rate is None or (getattr(rate, "device", None) is not None and rate.device.type != "cpu"):
            return None
        known.append(float(rate))
    return max(known, default=None)
