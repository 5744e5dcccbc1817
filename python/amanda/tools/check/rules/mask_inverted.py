"""mask-inverted."""

from __future__ import annotations

from amanda.toolkit import Place

from ..modes import called_at
from ..sequences import Attention, Batches, OfSequences

LEAST = 2  # batches
LEAST_TOKENS = 4  # of a batch, that are hidden


class MaskInverted(OfSequences):
    """A mask of attention hides the tokens, and shows the padding. The meaning of True differs: in the `key_padding_mask`
    of `nn.MultiheadAttention`, and in the masks of layers made of it, True hides a key. In the masks of
    `F.scaled_dot_product_attention` and in `attention_mask` of transformers, True or 1 shows it.

    It compares the keys that no query sees with the ids that an embedding with a `padding_idx` looked up, up to the 16th
    loss. It reports attention that hides all ids but the pad token, and nothing else, in two batches or more, and in all
    at this place that have padding.
    """

    name = "mask-inverted"
    sentence = "attention sees the padding only"
    fix = "invert the mask: key_padding_mask=ids == pad, and attention_mask=ids != pad in transformers"
    bad = """
        embedding = nn.Embedding(20, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        for _ in range(2):
            ids = torch.randint(1, 20, (4, 12))
            ids[:, 8:] = 0
            layer(embedding(ids), src_key_padding_mask=ids != 0).sum().backward()
    """
    good = """
        embedding = nn.Embedding(20, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        for _ in range(2):
            ids = torch.randint(1, 20, (4, 12))
            ids[:, 8:] = 0
            layer(embedding(ids), src_key_padding_mask=ids == 0).sum().backward()
    """

    def begin(self) -> None:
        super().begin()
        self._batches: dict[Place, Batches] = {}

    def attended(self, attention: Attention, place: Place) -> None:
        for lookup in self._lookups:
            is_pad = lookup.ids == lookup.pad
            for marks in (is_pad, is_pad.T):
                if lookup.pad >= 0 and is_pad.any() and attention.steps == marks.shape[1]:
                    batches = self._batches.setdefault(place, Batches(source=called_at()))
                    hidden = attention.hidden
                    if hidden is not None and hidden.shape == marks.shape and (hidden != marks).all():
                        batches.wrong += int(hidden.sum()) >= LEAST_TOKENS
                        what = f"{int(hidden.sum())} tokens of a batch are hidden, and {int(marks.sum())} of padding"
                        batches.evidence = batches.evidence or f"{what} are seen, which have the id {lookup.pad}"
                        return
        if place in self._batches and attention.hidden is not None:
            self._batches[place].right += 1

    def at_end(self, ended_well: bool) -> None:
        for place, batches in self._batches.items():
            if batches.wrong >= LEAST and not batches.right:
                self.found(place._replace(source=batches.source), batches.evidence, count=batches.wrong)
        self._batches.clear()
