"""FaultySteps: of how many of an optimizer's steps something is true."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

from amanda.toolkit import Place

from .rule import Rule, Step

LEAST = 2
MOST_RIGHT = 1


@dataclasses.dataclass
class _Count:
    right: int = 0
    faulty: int = 0
    place: Place | None = None
    evidence: str = ""


class FaultySteps:
    """Counts by optimizer. A mistake in a training loop is in each step, or begins with the second one; a fault in some
    steps may be meant, as of experts that are not used in each of them."""

    def __init__(self) -> None:
        self._counts: weakref.WeakKeyDictionary[Any, _Count] = weakref.WeakKeyDictionary()
        self._all: list[_Count] = []  # also of optimizers that are gone

    def add(self, step: Step, evidence: str) -> None:
        """`evidence` is empty if the step is right."""
        count = self._counts.get(step.optimizer)
        if count is None:
            count = self._counts[step.optimizer] = _Count()
            self._all.append(count)
        if evidence:
            count.faulty += 1
            count.place, count.evidence = step.place, evidence
        else:
            count.right += 1

    def is_suspect(self, optimizer: Any) -> bool:
        """The optimizer has had a faulty step."""
        return optimizer in self._counts and self._counts[optimizer].faulty > 0

    def mistakes(self) -> Iterator[tuple[Place, str, int]]:
        for count in self._all:
            if count.place is not None and count.faulty >= LEAST and count.right <= MOST_RIGHT:
                yield count.place, count.evidence, count.faulty


class OfFaultySteps(Rule):
    """Base of rules that report, at the end, an optimizer of which most steps were faulty."""

    counts_backward = True

    def begin(self) -> None:
        self._steps = FaultySteps()

    def at_end(self, ended_well: bool) -> None:
        for place, evidence, count in self._steps.mistakes():
            self.found(place, evidence, count=count)
        self._steps = FaultySteps()
