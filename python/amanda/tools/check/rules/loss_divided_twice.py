"""loss-divided-twice."""

from __future__ import annotations

from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frames import is_library, split_line

from ..graph import kind, node_behind
from ..rule import Rule, Step, operands

LOSSES = (
    *("cross_entropy_loss", "nll_loss_nd", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
)
_OF_MEAN = ("NllLoss", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy")
MEAN = 1  # of `reduction`


class LossDividedTwice(Rule):
    """A loss that is a mean over the batch is divided by the size of the batch: gradients are as many times too small.

    A division for accumulation, ``loss / steps``, is no finding: the loss is then divided several times for each step of
    the optimizer. Nor is a division in a library, which does not know the size of the batch, or the mean of what is one
    number already, which changes nothing.
    """

    name = "loss-divided-twice"
    sentence = "a mean loss is divided by the size of the batch"
    fix = "leave out the division, or compute the loss with reduction='sum'"
    ops = ("div", *LOSSES)
    bad = """
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels) / len(x)
            loss.backward()
            optimizer.step()
    """
    good = """
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(4):
                loss = F.cross_entropy(model(x), labels) / 4
                loss.backward()
            optimizer.step()
    """

    def begin(self) -> None:
        self._sizes: set[int] = set()  # of batches
        self._runs: dict[Place, int] = {}
        self._divisors: dict[Place, int] = {}
        self._steps = 0

    def look(self, context: OpContext) -> None:
        given = operands(context)
        divided = given["self"]
        if context.op.__name__ != "div":
            self._sizes.update(divided.shape[:1])
            return
        divisor = given["other"]
        if getattr(divisor, "ndim", 1) == 0 and divisor.device.type == "cpu":  # PyTorch makes a tensor of a number
            divisor = self.read(divisor, lambda plain: plain.item())
        if not isinstance(divisor, (int, float)) or divisor != divisor // 1:
            return
        if (
            divisor > 1
            and divisor in self._sizes
            and getattr(divided, "ndim", 1) == 0
            and _is_mean(node_behind(divided))
            and not _is_in_library(context)
        ):
            context.insert_before_op(self._on_division, inputs=[], place=Place.of(context), divisor=int(divisor))

    def _on_division(self, place: Place, divisor: int) -> None:
        self._runs[place], self._divisors[place] = self._runs.get(place, 0) + 1, divisor

    def after_step(self, step: Step) -> None:
        self._steps += 1

    def at_end(self, ended_well: bool) -> None:
        for place, runs in self._runs.items():
            if self._steps > 1 and runs < 2 * self._steps:
                divisor = self._divisors[place]
                self.found(place, f"divided by {divisor}, with reduction='mean' over {divisor} examples", count=runs)
        self._runs.clear()


def _is_in_library(context: OpContext) -> bool:
    place = split_line(context.source)
    return place is not None and is_library(place[0])


def _is_mean(node: Any) -> bool:
    return kind(node).startswith(_OF_MEAN) and getattr(node, "_saved_reduction", None) == MEAN
