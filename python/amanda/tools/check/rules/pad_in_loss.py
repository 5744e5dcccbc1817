"""pad-in-loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from amanda.toolkit import Place

from ..sequences import RIGHT, Lookup, OfSequences, Pair

LEAST = 2  # losses
LEAST_SHARE = 0.05  # of the targets that are counted
LEAST_TARGETS = 4


@dataclasses.dataclass
class _Losses:
    looked: int = 0
    wrong: int = 0
    padding: int = 0  # targets
    counted: int = 0
    pad: int = 0


class PadInLoss(OfSequences):
    """A loss counts the targets of padding, so that the model learns to predict it, and the loss is mostly about that if
    sequences are short. Padding is what ends or begins sequences with a pad token: the `padding_idx` of the embedding, or
    the one token of all keys that the mask of attention hides.

    It compares the targets of the first 16 losses with the ids that embeddings looked up. It reports a loss if a twentieth
    of what it counts is padding, or more, in two losses. The first of several pad tokens may end the text, and is left
    out. It says nothing about losses with `reduction="none"`, which a mask may multiply, nor about those with weights of
    classes.
    """

    name = "pad-in-loss"
    sentence = "the loss counts padding"
    fix = "set labels of padding to -100, or give the loss ignore_index= the pad token"
    bad = """
        embedding, head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 3)
        for _ in range(2):
            ids, tags = torch.randint(1, 20, (4, 12)), torch.randint(1, 3, (4, 12))
            ids[:2, 6:] = tags[:2, 6:] = 0
            F.cross_entropy(head(embedding(ids)).transpose(1, 2), tags).backward()
    """
    good = """
        embedding, head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 3)
        for _ in range(2):
            ids, tags = torch.randint(1, 20, (4, 12)), torch.randint(1, 3, (4, 12))
            ids[:2, 6:] = tags[:2, 6:] = 0
            scores = head(embedding(ids)).transpose(1, 2)
            each = F.cross_entropy(scores, tags, reduction="none")
            (F.cross_entropy(scores, tags, ignore_index=0) + (each * (ids != 0)).mean()).backward()
    """

    def begin(self) -> None:
        super().begin()
        self._losses: dict[Place, _Losses] = {}

    def judge(self, place: Place, pairs: list[Pair], reduction: int) -> None:
        if not reduction:
            return
        next_ids = [pair for pair in pairs if RIGHT in pair.shifts()]
        shift = RIGHT if next_ids else 0
        for pair in sorted(next_ids or [pair for pair in pairs if pair.is_in_order], key=_by_vocabulary):
            for pad, padding in _paddings(pair, self._lookups):
                if _belongs(pair, shift, padding) and self._count(place, pair, shift, pad, padding):
                    return

    def _count(self, place: Place, pair: Pair, shift: int, pad: int, padding: Any) -> bool:
        targets, ids = pair.span(shift)
        wrong, counted = int((padding[ids] & pair.counted[targets]).sum()), int(pair.counted.sum())
        if wrong < max(LEAST_TARGETS, LEAST_SHARE * counted):
            return False
        losses = self._losses.setdefault(place, _Losses())
        losses.wrong, losses.pad = losses.wrong + 1, pad
        losses.padding, losses.counted = losses.padding + wrong, losses.counted + counted
        return True

    def at_end(self, ended_well: bool) -> None:
        for place, losses in self._losses.items():
            if losses.wrong >= LEAST:
                what = f"{losses.padding} of {losses.counted} targets that it counts are those of padding"
                self.found(place, f"{what}, which has the id {losses.pad}", count=losses.wrong)
        self._losses.clear()


def _by_vocabulary(pair: Pair) -> int:
    """Tokens come before types of tokens."""
    return -pair.lookup.vocabulary


def _paddings(pair: Pair, lookups: list[Lookup]) -> Iterator[tuple[int, Any]]:
    """Pad tokens, and their positions: those of keys that attention hides, else ends of sequences with a token that is
    the embedding's pad token, or what attention hides in other sequences of its tokens."""
    lookup = pair.lookup
    hidden = _hidden(lookup)
    if hidden is not None:
        yield hidden[0], hidden[1] if lookup.ids is pair.ids else hidden[1].T
        return
    pads = {lookup.pad} if lookup.pad >= 0 else set()
    for other in map(_hidden, (one for one in lookups if one.vocabulary == lookup.vocabulary)):
        pads |= {other[0]} if other is not None else set()
    for pad in sorted(pads):
        yield pad, _padding(pair.ids, pad)


def _hidden(lookup: Lookup) -> tuple[int, Any] | None:
    """The token of all keys that attention hides, which are at the ends of sequences."""
    hidden = next((one.hidden for one in lookup.attention if one.hidden is not None), None)
    if hidden is None or hidden.shape != lookup.ids.shape:
        return None
    tokens = lookup.ids[hidden]
    is_padding = (tokens == tokens[0]).all() and (_ends(hidden) == hidden).all()
    return (int(tokens[0]), hidden) if is_padding else None


def _ends(marks: Any) -> Any:
    """The marks that begin or end a row without a gap."""
    forward, backward = _begins(marks), _begins(marks[:, ::-1])[:, ::-1]
    return forward | backward


def _begins(marks: Any) -> Any:
    return marks.cumprod(1).astype(bool)


def _padding(ids: Any, pad: int) -> Any:
    """Positions of padding, without the innermost one of each run, which may begin or end the text."""
    is_pad = ids == pad
    before, after = _begins(is_pad), _begins(is_pad[:, ::-1])[:, ::-1]
    before[:, :-1] &= before[:, 1:].copy()
    after[:, 1:] &= after[:, :-1].copy()
    return before | after


def _belongs(pair: Pair, shift: int, padding: Any) -> bool:
    """The targets are those of these ids: the graph shows it, or they are the next ids, or all padding has one target."""
    if not padding.any() or padding.all():
        return False
    if pair.first is not None:
        return True
    if not pair.is_whole:
        return False
    if shift:
        return True
    targets, lengths = pair.target[padding], padding.sum(1)
    return bool((targets == targets[0]).all() and (lengths != lengths[0]).any())
