"""Schedule: which steps of a loop are observed."""

from __future__ import annotations

import dataclasses
from typing import Literal

from amanda.reports.arguments import whole_number

Phase = Literal["wait", "warmup", "active"]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The steps of a loop that tools observe, in the words of `torch.profiler.schedule`, for `amanda.scheduled`::

        Schedule(every=100)  # steps 0, 100, 200, ...
        Schedule(wait=10, active=2, every=100)  # steps 10, 11, 110, 111, ...
        Schedule(skip_first=5, wait=1, warmup=1, active=3, repeat=2)  # steps 7, 8, 9, 12, 13, 14

    A cycle is `wait` steps, `warmup` steps, `active` steps, and then, with `every`, a rest. All arguments are numbers of
    steps, except `repeat`.

    Arguments:
        wait: off.
        warmup: open, but what tools find is forgotten. Only the first cycle warms up, because a scope analyzes each
            operator once; in later cycles these steps are off.
        active: open.
        repeat: the number of cycles; 0 means that they never end.
        skip_first: off, once, before the first cycle.
        every: the length of a cycle; `wait` + `warmup` + `active` by default.

    Raises:
        TypeError: an argument is not an integer.
        ValueError: one is negative, `active` is 0, or a cycle is longer than `every`.
    """

    wait: int = 0
    warmup: int = 0
    active: int = 1
    repeat: int = 0
    skip_first: int = 0
    every: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or field.name != "every":
                object.__setattr__(self, field.name, _checked(field.name, value))
        steps = self.wait + self.warmup + self.active
        if self.every is not None and self.every < steps:
            raise ValueError(
                f"[schedule] every= is the length of a cycle, here {steps} steps (wait + warmup + active) or more, "
                f"got {self.every}"
            )

    def __call__(self, step: int) -> Phase:
        """The phase of a step, which is a number from 0 on."""
        number = step - self.skip_first
        steps = self.wait + self.warmup + self.active
        cycle, position = divmod(number, self.every or steps)
        if number < 0 or (self.repeat and cycle >= self.repeat) or position < self.wait or position >= steps:
            return "wait"
        return "warmup" if position < self.wait + self.warmup else "active"


def _checked(name: str, value: object) -> int:
    least = 1 if name in ("active", "every") else 0
    what = "cycles" if name == "repeat" else "steps"
    complaint = f"[schedule] {name}= is a number of {what}, {least} or more, got {value!r}"
    return whole_number(value, complaint, least)
