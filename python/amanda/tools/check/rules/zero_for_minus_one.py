"""zero-for-minus-one."""

from __future__ import annotations

import dataclasses
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..rule import Rule, operands

LEAST = 2  # losses
_ZEROS = {
    "cosine_embedding_loss": "a pair with 0 has no loss",
    "hinge_embedding_loss": "what has 0 gets both losses, of 1 and of -1",
}


@dataclasses.dataclass
class _Targets:
    zeros: int = 0
    ones: int = 0
    losses: int = 0
    is_right: bool = False  # there were others


class ZeroForMinusOne(Rule):
    """A loss whose targets are 1 and -1 gets 1 and 0, as those of a binary cross entropy: `cosine_embedding_loss` or
    `hinge_embedding_loss`. Examples with the target 0 are then trained wrongly, or not at all. In `margin_ranking_loss`, 0
    may be meant: for pairs without an order, or that come the other way round, too.

    It reads targets that are on the CPU. It reports a place with 1 and 0, and nothing else, in all its losses, and in two
    or more.
    """

    name = "zero-for-minus-one"
    sentence = "a loss for targets of 1 and -1 gets 1 and 0"
    fix = "give it -1 for 0: 2 * target - 1"
    ops = tuple(_ZEROS)
    bad = """
        for _ in range(2):
            F.cosine_embedding_loss(model(x), model(x + 1), torch.tensor([1, 0, 0, 1])).backward()
    """
    good = """
        for _ in range(2):
            F.cosine_embedding_loss(model(x), model(x + 1), torch.tensor([1, -1, -1, 1])).backward()
            F.margin_ranking_loss(model(x)[:, 0], model(x)[:, 1], torch.tensor([1, 0, 0, 1])).backward()  # no order
    """

    def begin(self) -> None:
        self._targets: dict[Place, _Targets] = {}

    def look(self, context: OpContext) -> None:
        if operands(context)["target"].device.type == "cpu":
            name = context.op.__name__
            context.insert_before_op(self._on_loss, inputs=["target"], place=Place.of(context), name=name)

    def _on_loss(self, target: Any, place: Place, name: str) -> None:
        counts = self.read(target, lambda plain: (int((plain == 0).sum()), int((plain == 1).sum()), plain.numel()))
        if counts is not None:
            zeros, ones, all_targets = counts
            known = self._targets.setdefault(place, _Targets())
            known.zeros, known.ones, known.losses = known.zeros + zeros, known.ones + ones, known.losses + 1
            known.is_right = known.is_right or zeros + ones < all_targets

    def at_end(self, ended_well: bool) -> None:
        for place, known in self._targets.items():
            if known.losses >= LEAST and known.zeros and known.ones and not known.is_right:
                consequence = _ZEROS[place.name.removeprefix("aten::")]
                self.found(place, f"{known.zeros} targets are 0, {known.ones} are 1: {consequence}", count=known.losses)
        self._targets.clear()
