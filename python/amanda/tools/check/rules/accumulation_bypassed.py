"""accumulation-bypassed."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from typing import Any

from amanda.toolkit import Place

from ..rule import Rule, Step

LEAST = 2


@dataclasses.dataclass
class _Count:
    steps: int = 0
    early: int = 0
    place: Place | None = None


class AccumulationBypassed(Rule):
    """The program runs in `accelerator.accumulate` of accelerate, and its optimizer was not given to
    `accelerator.prepare`, or the program steps the one that it gave and not the one that it got. So it steps, and clears
    gradients, in each batch, with losses that accelerate has divided for several.

    That a model was not prepared, it does not see: on several ranks, "ranks-part" finds it.
    """

    name = "accumulation-bypassed"
    sentence = "the optimizer steps while accelerate accumulates gradients"
    fix = "give the optimizer to accelerator.prepare(), and call step() and zero_grad() of what it returns"
    library = "accelerate"
    bad = """
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
        model = accelerator.prepare(model)
        for _ in range(8):
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), labels))
                optimizer.step()
                optimizer.zero_grad()
    """
    good = """
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
        model, optimizer = accelerator.prepare(model, optimizer)
        for _ in range(8):
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), labels))
                optimizer.step()
                optimizer.zero_grad()
    """

    def begin(self) -> None:
        self._counts: weakref.WeakKeyDictionary[Any, _Count] = weakref.WeakKeyDictionary()
        self._all: list[_Count] = []  # also of optimizers that are gone

    def before_step(self, step: Step) -> None:
        library = sys.modules.get("accelerate.state")
        if library is None:
            return
        count = self._counts.get(step.optimizer)
        if count is None:
            count = self._counts[step.optimizer] = _Count()
            self._all.append(count)
        count.steps += 1
        # An instance would be a state for the whole program, where it has none.
        if not getattr(library.GradientState, "_shared_state", {}).get("sync_gradients", True):
            count.early += 1  # a prepared one does nothing then
            count.place = step.place

    def at_end(self, ended_well: bool) -> None:
        for count in self._all:
            if count.place is not None and count.early >= LEAST:
                evidence = f"{count.early} of its {count.steps} steps were taken before all gradients were added up"
                self.found(count.place, evidence, count=count.early)
        self._all.clear()
        self._counts.clear()
