"""Sequences: ids that embeddings look up, the attention that follows, and the loss over a vocabulary at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from amanda import OpContext
from amanda.toolkit import Arrays, Place

from .computed import shape_of
from .modes import called_at
from .positions import first_position
from .rule import Rule, Step, operands

LOOKED_AT = 16  # losses
KEPT = 8  # lookups
MOST = 32  # lookups without a loss, as where text is generated
LEAST = 8  # positions
LEAST_PADDING = 2  # tokens, at one end of a sequence
MASKED = -9_999.0  # keys are masked out where scores of attention are less
RIGHT = 1  # shift of a language model: it predicts the next id
SHIFTS = range(-1, 4)
_LOSSES = ("cross_entropy_loss", "nll_loss_nd")


@dataclasses.dataclass(frozen=True)
class Attention:
    """One over as many keys as queries."""

    steps: int
    is_causal: bool
    hidden: Any = None  #: (examples, steps): keys that no query sees; None if there are none, or it is not known
    sees_all_before: bool = True  #: in causal attention, each query sees all keys before it
    sees_next: Any = (
        None  #: (examples or 1, steps - 1): queries that see the next key; None if all do, or none in causal attention
    )


@dataclasses.dataclass(eq=False)
class Lookup:
    """Rows of an embedding that were looked up."""

    number: int  #: of its node in autograd's graph
    ids: Any  #: a copy with two axes, of numpy
    vocabulary: int  #: rows of the embedding
    pad: int  #: `padding_idx`; -1 if it has none
    attention: list[Attention] = dataclasses.field(default_factory=list)  #: what ran since


@dataclasses.dataclass(eq=False)
class Pair:
    """Ids and the targets that may belong to them: row (i, t) of the target to position `first` + t of sequence i."""

    lookup: Lookup
    ids: Any  #: (sequences, positions)
    target: Any  #: (sequences, rows)
    counted: Any  #: which targets are not ignored
    is_in_order: (
        bool  #: the target has the order of the ids: both have the sequences, or the positions, on the first axis
    )
    first: int | None  #: None if the graph does not show it

    @property
    def attention(self) -> list[Attention]:
        return [one for one in self.lookup.attention if one.steps == self.ids.shape[1]]

    @property
    def is_whole(self) -> bool:
        """There is a target for each position."""
        return bool(self.target.shape == self.ids.shape)

    def shifts(self) -> set[int]:
        """The k for which each counted target at t is the id at t + k: several in constant and periodic sequences."""
        return {shift for shift in SHIFTS if self.compared(shift) >= LEAST and self._is_shifted_by(shift)}

    def compared(self, shift: int) -> int:
        """The number of counted targets at t for which there is an id at t + `shift`."""
        return int(self.counted[self.span(shift)[0]].sum())

    def span(self, shift: int) -> tuple[Any, Any]:
        """The indices of targets at t, and of ids at t + `shift`, where there are both."""
        ahead = (self.first or 0) + shift
        begin = max(-ahead, 0)
        end = max(min(self.target.shape[1], self.ids.shape[1] - ahead), begin)
        return (slice(None), slice(begin, end)), (slice(None), slice(begin + ahead, end + ahead))

    def _is_shifted_by(self, shift: int) -> bool:
        targets, ids = self.span(shift)
        return bool(((self.target[targets] == self.ids[ids]) | ~self.counted[targets]).all())


@dataclasses.dataclass
class Batches:
    """The batches at a place, as a rule has judged them."""

    wrong: int = 0
    right: int = 0
    source: str = ""  #: the line that calls the model
    evidence: str = ""


class OfSequences(Rule):
    """Base of rules that compare the targets of losses with ids. They look at the first losses of a program."""

    ops: ClassVar[Sequence[str]] = ("embedding", "scaled_dot_product_attention", "softmax", *_LOSSES)

    def begin(self) -> None:
        self._lookups: list[Lookup] = []
        self._looked = 0  # losses
        self._copies = 0  # since the last loss

    def judge(self, place: Place, pairs: list[Pair], reduction: int) -> None:
        """Looks at a loss whose classes have no weights.

        Arguments:
            place: with the line that calls the model, if the loss is in it.
            pairs: the target next to each lookup that it may belong to; sequences on the last axis come first.
            reduction: 0 for none.
        """

    def attended(self, attention: Attention, place: Place) -> None:
        """Looks at an attention, at the operator that masks or computes it."""

    def after_step(self, step: Step) -> None:
        self._lookups.clear()

    def look(self, context: OpContext) -> None:
        name, given = context.op.__name__, operands(context)
        if self._looked >= LOOKED_AT:
            return
        if name == "embedding":
            if _is_of_sequences(given["indices"]):
                context.insert_before_op(self._on_lookup, inputs=["weight", "indices", "padding_idx"])
        elif name == "softmax":
            if given["self"].dim() in (3, 4) and given["dim"] in (-1, given["self"].dim() - 1):
                context.insert_before_op(self._on_softmax, inputs=["self"], place=Place.of(context))
        elif name == "scaled_dot_product_attention":
            asked = ["query", "key", "attn_mask", "is_causal"]
            context.insert_before_op(self._on_attention, inputs=asked, place=Place.of(context))
        elif given["weight"] is None and not given["target"].is_floating_point():
            asked = ["self", "target", "reduction", "ignore_index"]
            context.insert_before_op(self._on_loss, inputs=asked, place=Place.of(context))

    def _on_lookup(self, weight: Any, indices: Any, pad: int) -> None:
        from amanda.toolkit.torch import next_sequence_number

        if self._looked < LOOKED_AT and self._copies < MOST and _is_of_sequences(indices):
            self._copies += 1
            number, ids = next_sequence_number(), self._copied(indices)
            if ids is not None and ids.ndim in (1, 2):
                ids = ids if ids.ndim == 2 else ids[None]
                if not (ids[:, 1:] - ids[:, :-1] == 1).all():  # positions
                    self._lookups = [*self._lookups[1 - KEPT :], Lookup(number, ids, weight.shape[0], pad)]

    def _on_attention(self, query: Any, key: Any, mask: Any, is_causal: bool, place: Place) -> None:
        steps = self._steps(query, key)
        if steps and (is_causal or mask is None):
            self._add(Attention(steps, is_causal), place)
        elif steps and not _is_captured(mask):
            self._add(self.read(mask, lambda plain: self._seen(plain, steps)), place)

    def _on_softmax(self, scores: Any, place: Place) -> None:
        steps = self._steps(scores, None)
        if steps and not _is_captured(scores):
            self._add(self.read(scores, lambda plain: self._seen(plain, steps)), place)

    def _steps(self, queries: Any, keys: Any) -> int:
        """The steps of an attention over as many keys as queries, and as positions of a lookup; else 0."""
        shape = shape_of(queries)
        if not self._lookups or shape is None or len(shape) < 3:
            return 0
        other = shape[-1] if keys is None else (shape_of(keys) or (0, 0))[-2]
        steps = shape[-2] if shape[-2] == other else 0
        return steps if steps and any(steps in one.ids.shape for one in self._lookups) else 0

    def _seen(self, mask: Any, steps: int) -> Attention | None:
        """Reads scores, or a mask of which True, or 0, stands for what is seen: of the first head."""
        mask = mask.detach()
        if mask.dim() == 3 and len(mask) > 1:  # sequences and heads
            sizes = {size for one in self._lookups for size in one.ids.shape if one.ids.size == size * steps}
            sequences = max((size for size in sizes if len(mask) % size == 0), default=0)
            if not sequences:
                return None
            mask = mask.unflatten(0, (sequences, -1))
        mask = mask[:, 0] if mask.dim() == 4 else mask if mask.dim() == 3 else mask[None]
        if mask.dim() != 3:
            return None
        is_seen = (mask > MASKED if mask.is_floating_point() else mask.bool()).expand(-1, steps, steps)
        is_causal = not bool(is_seen.triu(1).any())
        sees_all_before = is_causal and bool((is_seen == is_seen.new_ones(steps, steps).tril()).all())
        hidden = ~is_seen.any(1).to("cpu").numpy()
        sees_next = is_seen.diagonal(1, 1, 2).to("cpu").numpy()
        return Attention(steps, is_causal, hidden if hidden.any() else None, sees_all_before, sees_next)

    def _add(self, attention: Attention | None, place: Place) -> None:
        if attention is not None:
            self.attended(attention, place)
            for one in self._lookups:
                one.attention.append(attention)

    def _on_loss(self, scores: Any, target: Any, reduction: int, ignored: int, place: Place) -> None:
        is_looked_at = self._looked < LOOKED_AT and bool(self._lookups)
        self._looked, self._copies = self._looked + is_looked_at, 0
        copy = self._copied(target) if is_looked_at and target.numel() >= LEAST else None
        if copy is not None:
            self.read(target, lambda _: self._compare(list(self._pairs(scores, copy, ignored)), reduction, place))

    def _compare(self, pairs: list[Pair], reduction: int, place: Place) -> None:
        if pairs:
            self.judge(place._replace(source=called_at()), pairs, reduction)

    def _pairs(self, scores: Any, target: Any, ignored: int) -> Iterator[Pair]:
        for axis in (1, 0):
            for lookup in self._lookups:
                ids = lookup.ids if axis else lookup.ids.T
                rows, rest = divmod(target.size, ids.shape[0])
                if rest or not 1 < rows <= ids.shape[1]:
                    continue
                first = first_position(scores, lookup.number, axis, rows, ids.shape[1])
                for order, one in enumerate((target.reshape(rows, -1).T, target.reshape(-1, rows))):
                    yield Pair(lookup, ids, one, one != ignored, order == axis, first)

    def _copied(self, tensor: Any) -> Any:
        def copied(plain: Any, arrays: Arrays) -> Any:
            return arrays.copied(plain, "cpu").numpy()

        return self.read_with(tensor, copied) if not _is_captured(tensor) else None


def _is_of_sequences(ids: Any) -> bool:
    return ids.dim() in (1, 2) and ids.numel() >= LEAST


def _is_captured(tensor: Any) -> bool:
    """A CUDA graph is recorded: nothing can be read."""
    import torch

    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def begins_with_padding(is_pad: Any) -> bool:
    """Rows have padding at the beginning, of different lengths, and nowhere else."""
    return ends_with_padding(is_pad[:, ::-1])


def ends_with_padding(is_pad: Any) -> bool:
    """The same at the end."""
    counts = is_pad.sum(1)
    if counts.max() < LEAST_PADDING or counts.min() == counts.max():
        return False
    return bool((is_pad[:, 1:] >= is_pad[:, :-1]).all())
