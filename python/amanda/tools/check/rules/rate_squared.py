"""rate-squared."""

from __future__ import annotations

import dataclasses
import math
import weakref
from typing import Any

from amanda.toolkit import Place

from ..rule import Rule, Step

LEAST = 3  # steps of the optimizer
LEAST_RATES = 2  # steps of the scheduler


class RateSquared(Rule):
    """The function of a `LambdaLR` returns the learning rate. It has to return a factor, by which the scheduler multiplies
    the rate of the optimizer: that becomes the square of what was meant, 0.0001 for 0.01.

    It reports an optimizer whose first rate is the square of the one that it was made with. Later rates must be smaller,
    and never larger: a warm-up is no finding, nor is a rate that stays.
    """

    name = "rate-squared"
    sentence = "LambdaLR multiplies the learning rate with itself"
    fix = "return a factor that begins with 1: LambdaLR(optimizer, lambda step: 0.9 ** step)"
    bad = """
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1 * 0.9**step)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            scheduler.step()
    """
    good = """
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 10))
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            scheduler.step()
    """

    def begin(self) -> None:
        self._suspects: list[_Suspect] = []

    def before_step(self, step: Step) -> None:
        if not step.number:
            self._look_at(step)
        for one in self._suspects:
            if one.optimizer() is step.optimizer:
                one.see(step)

    def _look_at(self, step: Step) -> None:
        made_with = [group.get("initial_lr") for group in step.optimizer.param_groups]
        if not all(_is_squared(rate, one) for rate, one in zip(_rates(step), made_with, strict=True)):
            return
        from torch.optim.lr_scheduler import LambdaLR

        from ..schedulers import schedulers_of

        scheduler = next((one for one in schedulers_of(step.optimizer) if isinstance(one, LambdaLR)), None)
        if scheduler is not None:
            what = f"it gives a factor of {made_with[0]:.3g} for a rate of {made_with[0]:.3g}"
            evidence = f"{what}, which becomes {_rates(step)[0]:.3g}"
            both = weakref.ref(step.optimizer), weakref.ref(scheduler)
            self._suspects.append(_Suspect(*both, step.place, evidence, _rates(step)))

    def at_end(self, ended_well: bool) -> None:
        for one in self._suspects:
            if one.steps >= LEAST and one.rates >= LEAST_RATES and one.is_smaller and not one.is_larger:
                self.found(one.place, one.evidence, count=one.steps)
        self.begin()


@dataclasses.dataclass
class _Suspect:
    optimizer: weakref.ref[Any]
    scheduler: weakref.ref[Any]
    place: Place
    evidence: str
    first: list[float]  # rates
    steps: int = 0
    rates: int = 0  # steps of the scheduler
    is_larger: bool = False
    is_smaller: bool = False

    def see(self, step: Step) -> None:
        self.steps += 1
        self.rates = max(self.rates, getattr(self.scheduler(), "last_epoch", 0))
        pairs = list(zip(_rates(step), self.first, strict=False))
        self.is_larger = self.is_larger or any(rate > first for rate, first in pairs)
        self.is_smaller = self.is_smaller or any(rate < first for rate, first in pairs)


def _rates(step: Step) -> list[float]:
    return [float(group["lr"]) for group in step.optimizer.param_groups]


def _is_squared(rate: float, made_with: Any) -> bool:
    return isinstance(made_with, float) and 0 < made_with < 1 and math.isclose(rate, made_with**2, rel_tol=1e-6)
