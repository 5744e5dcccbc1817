"""target-seen."""

from __future__ import annotations

import dataclasses
from typing import Any

from amanda.toolkit import Place

from ..sequences import LEAST as LEAST_POSITIONS
from ..sequences import RIGHT, Attention, OfSequences, Pair

LEAST = 2  # losses


@dataclasses.dataclass
class _Losses:
    wrong: int = 0
    right: int = 0
    positions: int = 0


class TargetSeen(OfSequences):
    """A language model sees the tokens that it predicts: the target of position t is the id at t + 1, and no mask keeps
    attention from it. The loss becomes very small, and the model cannot generate. Examples are `nn.TransformerEncoder`
    without a mask, `nn.Transformer` without `tgt_mask`, and BERT as a decoder without `is_decoder=True`.

    It compares the targets of the first 16 losses with the ids that embeddings looked up. In two losses or more, and in all
    at this place, each position that counts must see the next one, in all attention over the sequence. Autograd must
    record the embedding and all that leads to the loss.
    """

    name = "target-seen"
    sentence = "attention sees the tokens that are to be predicted"
    fix = "give the layers a causal mask: nn.Transformer.generate_square_subsequent_mask(steps), or is_causal=True"
    bad = """
        embedding, head = nn.Embedding(20, 8), nn.Linear(8, 20)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        for _ in range(2):
            ids = torch.randint(20, (4, 13))
            scores = head(layer(embedding(ids[:, :-1])))
            F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten()).backward()
    """
    good = """
        embedding, head = nn.Embedding(20, 8), nn.Linear(8, 20)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        mask = nn.Transformer.generate_square_subsequent_mask(12)
        for _ in range(2):
            ids = torch.randint(20, (4, 13))
            scores = head(layer(embedding(ids[:, :-1]), mask))
            F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten()).backward()
    """

    def begin(self) -> None:
        super().begin()
        self._losses: dict[Place, _Losses] = {}

    def judge(self, place: Place, pairs: list[Pair], reduction: int) -> None:
        pair = next((one for one in pairs if one.first is not None and one.shifts() == {RIGHT}), None)
        if pair is None:
            return
        losses = self._losses.setdefault(place, _Losses())
        if pair.attention and all(_sees_targets(one, pair) for one in pair.attention):
            losses.wrong += 1
            losses.positions += pair.compared(RIGHT)
        else:
            losses.right += 1

    def at_end(self, ended_well: bool) -> None:
        for place, losses in self._losses.items():
            if losses.wrong >= LEAST and not losses.right:
                what = "the target of each position t is the id at t + 1, which position t sees"
                self.found(place, f"{what}, in all {losses.positions} that were compared", count=losses.wrong)
        self._losses.clear()


def _sees_targets(attention: Attention, pair: Pair) -> bool:
    """Each position that counts, and has a next one, sees it."""
    if attention.is_causal:
        return False
    if attention.sees_next is None:
        return True
    targets, ids = pair.span(RIGHT)
    counted: Any = pair.counted[targets]
    sees = attention.sees_next[:, ids[1].start - 1 : ids[1].stop - 1]
    if len(sees) not in (1, len(counted)):
        return False
    return bool((sees | ~counted).all()) and int(counted.sum()) >= LEAST_POSITIONS
