"""accumulation-uneven."""

from __future__ import annotations

import dataclasses
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..modes import called_at
from ..rule import Rule, Step, operands
from ..sequences import Batches

LOOKED_AT = 64  # losses
LEAST = 2  # steps
FACTOR = 2.0  # between the weights of a target
MEAN = 1  # of `reduction`
_LOSSES = ("cross_entropy_loss", "nll_loss_nd")


@dataclasses.dataclass
class _Step:
    shares: dict[Place, list[tuple[float, int]]] = dataclasses.field(default_factory=dict)
    """By loss: the weight of a target, their number."""
    place: Place | None = None  # of the last one
    waits: int = 0  # losses without a backward pass
    counted: int = 0  # targets of the last one
    is_known: bool = True  # each loss had its backward pass before the next one


class AccumulationUneven(Rule):
    """Gradients of several batches are accumulated, each of a mean over its own targets, and the batches have other numbers
    of them, as texts of different lengths do. A token of a short batch then counts more than one of a long batch, and the
    result is not that of one large batch. Each mean may be meant, as it is where ranks have batches of their own.

    It compares the gradient that a mean loss got with the number of targets that it counts, in the first 64 losses. It
    reports a loss if the weights of targets in a step differ by a factor of two or more, in two steps or more, and in most.
    """

    name = "accumulation-uneven"
    sentence = "accumulated losses are means over different numbers of targets"
    fix = (
        "divide by the targets of all batches of the step: reduction='sum' and / number, or num_items_in_batch=number in "
        "transformers"
    )
    is_advice = True
    ops = _LOSSES
    backward_ops = _LOSSES
    bad = """
        for _ in range(3):
            optimizer.zero_grad()
            for counted in (4, 1):
                few = labels.masked_fill(torch.arange(4) >= counted, -100)
                (F.cross_entropy(model(x), few) / 2).backward()
            optimizer.step()
    """
    good = """
        for _ in range(3):
            optimizer.zero_grad()
            for counted in (4, 1):
                few = labels.masked_fill(torch.arange(4) >= counted, -100)
                (F.cross_entropy(model(x), few) * counted / 5).backward()
                (F.cross_entropy(model(x), few, reduction="sum") / 5).backward()
            optimizer.step()
    """

    def begin(self) -> None:
        self._step = _Step()
        self._losses = 0
        self._judged: dict[Place, Batches] = {}  # steps, by loss

    def look(self, context: OpContext) -> None:
        given = operands(context)
        if given["weight"] is None and given["reduction"] == MEAN and not given["target"].is_floating_point():
            asked = ["target", "ignore_index"]
            context.insert_before_op(self._on_loss, inputs=asked, place=Place.of(context))

    def look_backward(self, context: OpContext) -> None:
        context.insert_before_backward_op(self._on_gradient, [0])

    def _on_loss(self, target: Any, ignored: int, place: Place) -> None:
        if self._losses >= LOOKED_AT:
            return
        self._losses += 1
        self._step.counted = self.read(target, lambda plain: int((plain != ignored).sum())) or 0
        self._step.waits += 1
        self._step.place = place._replace(source=called_at())

    def _on_gradient(self, gradient: Any) -> None:
        step = self._step
        if gradient is None or gradient.dim() or not step.waits:
            return
        weight = self.read(gradient, lambda plain: float(plain.item()))
        step.is_known = step.is_known and step.waits == 1 and bool(step.counted) and bool(weight)
        if step.is_known and step.place is not None and weight is not None:
            step.shares.setdefault(step.place, []).append((weight / step.counted, step.counted))
        step.waits = 0

    def after_step(self, step: Step) -> None:
        shares, is_known = self._step.shares, self._step.is_known
        self._step = _Step()
        for place, of_loss in shares.items() if is_known else ():
            if len(of_loss) > 1:
                most, least = max(of_loss), min(of_loss)
                is_wrong = most[0] >= FACTOR * least[0] > 0
                judged = self._judged.setdefault(place, Batches())
                judged.wrong, judged.right = judged.wrong + is_wrong, judged.right + (not is_wrong)
                if is_wrong and not judged.evidence:
                    factor = f"{most[0] / least[0]:.3g} times"
                    judged.evidence = f"in one step, a target of {most[1]} counts {factor} as much as one of {least[1]}"

    def at_end(self, ended_well: bool) -> None:
        for place, judged in self._judged.items():
            if judged.wrong >= LEAST and judged.wrong > judged.right:
                self.found(place, judged.evidence, count=judged.wrong)
        self.begin()
