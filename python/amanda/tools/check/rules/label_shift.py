"""label-shift."""

from __future__ import annotations

import dataclasses

from amanda.toolkit import Place

from ..sequences import RIGHT, OfSequences, Pair

TWICE = 2
LEAST = 2  # losses


@dataclasses.dataclass
class _Losses:
    wrong: int = 0
    right: int = 0
    positions: int = 0  # that were compared
    shift: int = 0
    lookups: set[int] = dataclasses.field(default_factory=set)  # numbers


class LabelShift(OfSequences):
    """A language model learns at each position another token than the next one. Labels are shifted twice, by the program
    and by the model, as those of transformers do: the target of position t is the id at t + 2. Or they are not shifted, and
    attention is causal: the target is the id at t, which the model only copies.

    It compares the targets of the first 16 losses with the ids that embeddings looked up: all that are counted, in two
    losses or more and in all at this place. For labels that are not shifted, autograd must record the embedding and all
    that leads to the loss.

    It says nothing where constant or periodic ids fit several shifts, and where attention sees later positions, as in
    masked language models and autoencoders. Nor does it where other losses of the same ids have other shifts, as those of
    heads for several tokens.
    """

    name = "label-shift"
    sentence = "labels are not those of the next token"
    fix = "shift once: labels=input_ids for a model that shifts; ids[:, :-1] and ids[:, 1:] for a loss of your own"
    bad = """
        embedding, head = nn.Embedding(20, 8), nn.Linear(8, 20)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        mask = nn.Transformer.generate_square_subsequent_mask(12)
        for _ in range(2):
            ids = torch.randint(20, (4, 12))
            scores = head(layer(embedding(ids), mask))
            F.cross_entropy(scores.flatten(0, 1), ids.flatten()).backward()
    """
    good = """
        embedding, head = nn.Embedding(20, 8), nn.Linear(8, 20)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        mask = nn.Transformer.generate_square_subsequent_mask(12)
        for _ in range(2):
            ids = torch.randint(20, (4, 12))
            scores = head(layer(embedding(ids), mask))
            F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
            F.cross_entropy(head(layer(embedding(ids))).flatten(0, 1), ids.flatten()).backward()  # an autoencoder
    """

    def begin(self) -> None:
        super().begin()
        self._losses: dict[Place, _Losses] = {}
        self._shifts: dict[int, set[int]] = {}  # of the losses of each lookup

    def judge(self, place: Place, pairs: list[Pair], reduction: int) -> None:
        losses = self._losses.setdefault(place, _Losses())
        found = [(pair, pair.shifts()) for pair in pairs]
        right = next((pair for pair, shifts in found if RIGHT in shifts), None)
        if right is not None:
            losses.right += 1
            self._shifts.setdefault(right.lookup.number, set()).add(RIGHT)
            return
        for pair, shifts in found:
            if len(shifts) == 1:
                (shift,) = shifts
                self._shifts.setdefault(pair.lookup.number, set()).add(shift)
                if _is_wrong(pair, shift) and losses.shift in (0, shift):
                    losses.wrong, losses.shift = losses.wrong + 1, shift
                    losses.positions += pair.compared(shift)
                    losses.lookups.add(pair.lookup.number)
                    return
        losses.right += 1  # or not known

    def at_end(self, ended_well: bool) -> None:
        for place, losses in self._losses.items():
            others = set().union(*(self._shifts[number] for number in losses.lookups)) - {losses.shift}
            if losses.wrong >= LEAST and not losses.right and not others:
                where = "t" if not losses.shift else f"t {'+' if losses.shift > 0 else '-'} {abs(losses.shift)}"
                reads = "" if losses.shift > 0 else ", which attention sees"
                what = f"the target of each position t is the id at {where}{reads}"
                self.found(place, f"{what}, in all {losses.positions} that were compared", count=losses.wrong)
        self._losses.clear()
        self._shifts.clear()


def _is_wrong(pair: Pair, shift: int) -> bool:
    if shift == TWICE:
        return pair.first is not None or (pair.is_whole and len(pair.ids) > 1)
    sees_all_before = bool(pair.attention) and all(one.is_causal for one in pair.attention)
    return shift < RIGHT and pair.first is not None and sees_all_before
