"""classes-in-order."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..losses import LOSSES
from ..rule import Rule, Step, operands

LOOKED_AT = 256  # losses of each place
LEAST_BATCHES, LEAST_LABELS = 6, 24
BATCHES_OF_A_PASS = 4
CHANCE = 1e-6


@dataclasses.dataclass
class _Labels:
    place: Place
    batches: int = 0
    labels: int = 0
    passes: int = 1
    first: int = 0
    last: int = 0
    most: int = 0
    changes: int = 0  # batches that end with another class than the one before
    is_ordered: bool = True
    used: int = 0  # batches that a step followed
    waits: bool = False  # for a step
    of_class: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)  # labels of this pass
    log_chance: float = 0.0  # that labels in any order come in this one: of the passes before

    def next_pass(self) -> None:
        self.log_chance += sum(math.lgamma(count + 1) for count in self.of_class.values())
        self.log_chance -= math.lgamma(self.of_class.total() + 1)
        self.of_class.clear()

    @property
    def is_by_chance(self) -> bool:
        """Passes may begin after any batch."""
        return self.log_chance + math.log(math.comb(self.batches - 1, self.passes - 1)) > math.log(CHANCE)


class ClassesInOrder(Rule):
    """A classifier is trained on the examples of one class, then on those of the next, as a folder of images has them:
    nothing shuffles the data. It learns to answer with the class that it saw last.

    It reads the labels of losses that have a gradient, on the CPU, until one is out of order. It reports six batches or
    more whose labels never decrease, but at the beginning of a pass over the data, which has four batches or more. Batches
    that hold several classes in order, each of which begins with the first class, are no finding. An optimizer must step
    after half of the batches or more: one step after a batch of each class is none. And labels of which almost all are of
    one class are none, as they may come in this order by chance.
    """

    name = "classes-in-order"
    sentence = "examples come in the order of their classes"
    fix = "DataLoader(..., shuffle=True)"
    ops = LOSSES
    bad = """
        for number in range(0, 24, 4):
            batch = torch.arange(number, number + 4)
            F.cross_entropy(model(torch.randn(4, 4)), batch // 8).backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    good = """
        for batch in torch.arange(24).reshape(4, 6).T:
            F.cross_entropy(model(torch.randn(4, 4)), batch // 8).backward()
            optimizer.step()
            optimizer.zero_grad()
        for _ in range(8):
            F.cross_entropy(model(torch.randn(6, 4)), torch.arange(3).repeat_interleave(2)).backward()  # few-shot
            optimizer.step()
            optimizer.zero_grad()
    """

    def begin(self) -> None:
        self._labels: dict[Place, _Labels] = {}

    def look(self, context: OpContext) -> None:
        given = operands(context)
        target = given["target"]
        is_classes = (
            context.op.__name__ == "cross_entropy_loss" and target.dim() == 1 and not target.is_floating_point()
        )
        if is_classes and target.device.type == "cpu" and given["self"].requires_grad:
            known = self._labels.setdefault(Place.of(context), _Labels(Place.of(context)))
            context.insert_before_op(self._on_loss, inputs=["target"], known=known)

    def _on_loss(self, target: Any, known: _Labels) -> None:
        if not known.is_ordered or known.batches >= LOOKED_AT or target.numel() < 2:
            return
        runs = self.read(target, _runs)
        if runs is None:
            return
        if not runs:
            known.is_ordered = False
            return
        first, last, is_ordered = runs[0][0], runs[-1][0], True
        if not known.batches:
            known.first = first
        elif first < known.last:
            known.passes += 1
            known.next_pass()
            is_ordered = first == known.first
        known.changes += bool(known.batches) and last != known.last
        known.batches, known.labels, known.last = known.batches + 1, known.labels + target.numel(), last
        known.most, known.is_ordered, known.waits = max(known.most, last), is_ordered, True
        known.of_class.update(dict(runs))

    def before_step(self, step: Step) -> None:
        for one in self._labels.values():
            one.used, one.waits = one.used + one.waits, False

    def at_end(self, ended_well: bool) -> None:
        for one in self._labels.values():
            one.next_pass()
            is_long = one.batches >= LEAST_BATCHES and one.labels >= LEAST_LABELS and one.changes
            is_long = is_long and one.batches >= BATCHES_OF_A_PASS * one.passes
            if one.is_ordered and is_long and 2 * one.used >= one.batches and not one.is_by_chance:
                what = f"labels never decrease, from {one.first} to {one.most}, in {one.batches} batches"
                again = f" of {one.passes} passes" if one.passes > 1 else ""
                self.found(one.place, f"{what}{again}", count=one.batches)
        self._labels.clear()


def _runs(labels: Any) -> list[tuple[int, int]]:
    """Each class and the number of its labels; nothing if they are out of order."""
    if bool((labels[1:] < labels[:-1]).any()):
        return []
    return list(zip(*(one.tolist() for one in labels.unique_consecutive(return_counts=True)), strict=True))
