"""Growth: the memory in use after each step of an optimizer."""

from __future__ import annotations

from amanda.toolkit.answers import ordinal, size

WARM = 2  # steps after which gradients and the state of optimizers are there
LEAST = 4  # steps, before anything is said
NOTABLE = 0.01  # of what is in use: less is numbers that the program collects


class Growth:
    """Counts, without keeping a number for each step."""

    def __init__(self) -> None:
        self.steps = 0
        self.first = self.last = 0  # bytes after step `WARM`, and after the last one
        self._grew = 0  # steps after that one, which ended with more in use than the step before

    def add(self, live_bytes: int) -> None:
        """A step has ended."""
        self.steps += 1
        if self.steps <= WARM:
            self.first = live_bytes
        else:
            self._grew += live_bytes > self.last
        self.last = live_bytes

    def __str__(self) -> str:
        """A sentence; "" if memory does not grow in most steps."""
        if self.steps < LEAST or 2 * self._grew < self.steps - WARM or self.last < (1 + NOTABLE) * self.first:
            return ""
        per_step = (self.last - self.first) / (self.steps - WARM)
        return (
            f"memory in use grows by {size(per_step)} per step: {size(self.first)} after the {ordinal(WARM)} step of an "
            f"optimizer, {size(self.last)} after the {ordinal(self.steps)}"
        )
