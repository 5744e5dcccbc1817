"""host-sync."""

from __future__ import annotations

import sys

from amanda import OpContext
from amanda.toolkit import Place

from ..rule import Rule, Step

LEAST = 2  # steps


class HostSync(Rule):
    """A value is read from a tensor more than once per step of the optimizer: `item()`, `float(tensor)`, `if tensor:`,
    `nonzero()` and masks as indices. On a GPU, each waits until all that was started before has run.

    One read per step, as of a loss for the log, is no finding; nor are the optimizer's own.
    """

    name = "host-sync"
    sentence = "values of tensors are read in a loop"
    fix = "add up on the device, and read once per step or per epoch"
    is_advice = True
    ops = ("item", "is_nonzero", "nonzero", "_local_scalar_dense")
    bad = """
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            right = sum(label.item() == 0 for label in labels)
    """
    good = """
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            right, log = (labels == 0).sum(), loss.item()
    """

    def begin(self) -> None:
        self._runs: dict[Place, int] = {}
        self._steps = 0

    def look(self, context: OpContext) -> None:
        from amanda.toolkit.optimizer_phase import in_optimizer

        if not in_optimizer(sys._getframe()):
            context.insert_before_op(self._on_run, inputs=[], place=Place.of(context))

    def _on_run(self, place: Place) -> None:
        self._runs[place] = self._runs.get(place, 0) + 1

    def after_step(self, step: Step) -> None:
        self._steps += 1

    def at_end(self, ended_well: bool) -> None:
        for place, runs in self._runs.items():
            if self._steps >= LEAST and runs >= 2 * self._steps:
                self.found(place, f"{runs:,} reads in {self._steps:,} steps", count=runs)
        self._runs.clear()
