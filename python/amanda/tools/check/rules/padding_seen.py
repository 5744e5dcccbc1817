"""padding-seen."""

from __future__ import annotations

from typing import Any

from amanda.toolkit import Place

from ..modes import called_at
from ..sequences import Attention, Batches, OfSequences, begins_with_padding, ends_with_padding

LEAST = 2  # batches


class PaddingSeen(OfSequences):
    """Attention has no mask for padding: the tokens of a short text see its padding, so that its result depends on the
    length of other texts in the batch. Examples are BERT without `attention_mask`, and `nn.TransformerEncoder` without
    `src_key_padding_mask`.

    It looks at ids of an embedding with a `padding_idx`, up to the 16th loss. Padding must end rows, or begin them, in
    other lengths, and be nowhere else. It reports attention that hides no key from all queries, in two batches or more,
    and in all at this place that have padding. Causal attention is no finding if padding is
    at the end: it sees padding before a text only, as in batches for generation.
    """

    name = "padding-seen"
    sentence = "attention sees the padding"
    fix = (
        "give the model a mask: attention_mask=ids != pad in transformers, src_key_padding_mask=ids == pad in torch.nn"
    )
    bad = """
        embedding = nn.Embedding(20, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        for _ in range(2):
            ids = torch.randint(1, 20, (4, 12))
            ids[:2, 8:] = 0
            layer(embedding(ids)).sum().backward()
    """
    good = """
        embedding = nn.Embedding(20, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        causal = nn.Transformer.generate_square_subsequent_mask(12)
        for _ in range(2):
            ids = torch.randint(1, 20, (4, 12))
            ids[:2, 8:] = 0
            layer(embedding(ids), src_key_padding_mask=ids == 0).sum().backward()
            layer(embedding(ids), causal).sum().backward()
            layer(embedding(ids.clamp(1))).sum().backward()
            board = torch.randint(0, 2, (4, 12))  # fields that are empty
            layer(embedding(board)).sum().backward()
    """

    def begin(self) -> None:
        super().begin()
        self._batches: dict[Place, Batches] = {}

    def attended(self, attention: Attention, place: Place) -> None:
        for lookup in self._lookups:
            is_pad = lookup.ids == lookup.pad
            marks = next(
                (one for one in (is_pad, is_pad.T) if one.shape[1] == attention.steps and _is_seen(one, attention)),
                None,
            )
            if lookup.pad < 0 or marks is None:
                continue
            batches = self._batches.setdefault(place, Batches(source=called_at()))
            if attention.hidden is not None or (attention.is_causal and not attention.sees_all_before):
                batches.right += 1
            else:
                batches.wrong += 1
                what = f"{int(marks.sum())} of {marks.size} tokens of a batch are padding"
                batches.evidence = batches.evidence or f"{what}, with the id {lookup.pad}, and none is hidden"
            return

    def at_end(self, ended_well: bool) -> None:
        found: dict[str, list[Place]] = {}  # by the line that calls the model: one for all its layers
        for place, batches in self._batches.items():
            if batches.wrong >= LEAST and not batches.right:
                found.setdefault(batches.source, []).append(place)
        for source, places in found.items():
            first = self._batches[places[0]]
            layers = f", in {len(places)} layers" if len(places) > 1 else ""
            self.found(places[0]._replace(source=source), first.evidence + layers, count=first.wrong)
        self._batches.clear()


def _is_seen(is_pad: Any, attention: Attention) -> bool:
    """There is padding that attention without a mask for it would see. In causal attention, that is padding before the
    text."""
    return begins_with_padding(is_pad) or (not attention.is_causal and ends_with_padding(is_pad))
