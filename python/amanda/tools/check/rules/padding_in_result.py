"""padding-in-result."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..computed import shape_of
from ..graph import leads_to_embedding
from ..rule import Step, operands
from ..sequences import LOOKED_AT, Lookup, OfSequences, begins_with_padding, ends_with_padding

LEAST = 2  # batches
MOST = 256  # states of recurrent layers that are known
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@dataclasses.dataclass
class _Batches:
    wrong: int = 0
    is_right: bool = False
    evidence: str = ""
    lengths: set[int] = dataclasses.field(default_factory=set)  # the steps of a batch, if they must differ


class PaddingInResult(OfSequences):
    """A program takes the last step of a batch of padded texts, as by ``out[:, -1]``, or the last state of an `nn.LSTM`,
    `nn.GRU` or `nn.RNN` that got no packed sequence. Or it takes the mean over all steps. The result for a text then
    depends on the length of others in its batch.

    It looks at ids of an embedding with a `padding_idx`, up to the 16th loss, and at what autograd knows to be computed
    from them. Padding must end rows in other lengths; for a mean it may begin them, too. It reports a place in two batches
    or more, and in all that have padding. A mean is no finding where all that belongs to padding is zero, or where all
    batches are padded to one length. Nor is a loop over the steps that ends with the last one. A step that is taken
    and has no effect, as where only its shape is used, is a finding, too.
    """

    name = "padding-in-result"
    sentence = "the result for a text is taken from its padding"
    fix = (
        "take the last token: out[torch.arange(len(out)), lengths - 1], or pack_padded_sequence before the layer; as a "
        "mean, (out * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)"
    )
    ops = (*OfSequences.ops, "mean", "select", "squeeze", *_RECURRENT)
    bad = """
        embedding, layer, head = nn.Embedding(20, 4, padding_idx=0), nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3)
        for _ in range(2):
            ids = torch.randint(1, 20, (4, 12))
            ids[:2, 8:] = 0
            out, _ = layer(embedding(ids))
            F.cross_entropy(head(out[:, -1]), labels).backward()
    """
    good = """
        embedding, layer, head = nn.Embedding(20, 4, padding_idx=0), nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3)
        for _ in range(2):
            ids = torch.randint(1, 20, (4, 12))
            ids[:2, 8:] = 0
            mask = ids != 0
            out, _ = layer(embedding(ids))
            F.cross_entropy(head(out[torch.arange(4), mask.sum(1) - 1]), labels).backward(retain_graph=True)
            F.cross_entropy(head((out * mask[..., None]).mean(1)), labels).backward(retain_graph=True)
            F.cross_entropy(sum(head(out[:, step]) for step in range(12)), labels).backward()
            packed = nn.utils.rnn.pack_padded_sequence(embedding(ids), mask.sum(1), True, False)
            F.cross_entropy(head(layer(packed)[1][-1]), labels).backward()
            F.cross_entropy(head(layer(embedding(ids.flip(1)))[0][:, -1]), labels).backward()
    """

    def begin(self) -> None:
        super().begin()
        self._batches: dict[Place, _Batches] = {}
        self._states: dict[
            tuple[int, int], tuple[int, int]
        ] = {}  # by result of autograd: the axis of steps, directions

    def look(self, context: OpContext) -> None:
        name, given = context.op.__name__, operands(context)
        if name in _RECURRENT:
            if "batch_first" in given:  # none of a packed sequence
                directions = 1 + bool(given["bidirectional"])
                axis = int(given["batch_first"])
                context.insert_after_op(self._on_state, outputs=[1], axis=axis, directions=directions)
        elif name == "mean":
            if not given.get("keepdim", True):
                context.insert_before_op(self._on_mean, inputs=["self", "dim"], place=Place.of(context))
        elif name == "select":
            context.insert_before_op(self._on_select, inputs=["self", "dim", "index"], place=Place.of(context))
        elif name == "squeeze":
            context.insert_before_op(self._on_squeeze, inputs=["self"], place=Place.of(context))
        elif name in OfSequences.ops:
            super().look(context)

    def _on_state(self, state: Any, axis: int, directions: int) -> None:
        result = _result(state)
        if result is not None and len(self._states) < MOST and self._lookups:
            self._states[result] = axis, directions

    def _on_mean(self, tensor: Any, dim: Any, place: Place) -> None:
        axes = list(dim) if isinstance(dim, (list, tuple)) else [dim]
        shape = self._shape(tensor)
        if shape is None or len(axes) != 1 or axes[0] not in (0, 1, -2, -3):
            return
        axis = axes[0] % 3
        for lookup, is_pad in self._padded(shape, axis):
            if leads_to_embedding(tensor, lookup.number):
                marks = is_pad if axis == 1 else is_pad.T
                counts = self.read(tensor, functools.partial(_is_counted, marks=marks))
                padding = f"{int(is_pad.sum())} of {is_pad.size} tokens of a batch"
                what = f"the mean over {shape[axis]} steps counts padding: {padding}"
                self._judge(place, bool(counts), what, shape[axis])
                return

    def _on_select(self, tensor: Any, dim: int, index: int, place: Place) -> None:
        if self._is_of_state(tensor):
            layer = index % tensor.shape[0]
            if dim % tensor.dim() == 0:
                self._judge_state(tensor, layer, place)
            return
        shape = self._shape(tensor)
        axis = dim % 3
        if shape is None or axis > 1:
            return
        for lookup, is_pad in self._padded(shape, axis):
            if not ends_with_padding(is_pad):
                continue
            if index % shape[axis] != shape[axis] - 1:
                self._batches.setdefault(place, _Batches()).is_right = True
            elif leads_to_embedding(tensor, lookup.number):
                self._judge(place, True, _last(is_pad))
            return

    def _on_squeeze(self, tensor: Any, place: Place) -> None:
        if self._is_of_state(tensor) and tensor.shape[0] == 1:
            self._judge_state(tensor, 0, place)

    def _judge_state(self, state: Any, layer: int, place: Place) -> None:
        axis, directions = self._states[_result(state) or (0, 0)]
        if directions == 2 and layer % 2:  # it ends at the first step
            return
        for lookup in reversed(self._lookups):
            is_pad = _is_pad(lookup, axis)
            if is_pad.shape[0] == state.shape[1] and ends_with_padding(is_pad):
                if leads_to_embedding(state, lookup.number):
                    self._judge(place, True, _last(is_pad))
                return

    def _is_of_state(self, tensor: Any) -> bool:
        return bool(self._states) and tensor.dim() == 3 and _result(tensor) in self._states

    def _shape(self, tensor: Any) -> tuple[Any, ...] | None:
        """The shape of a result with three axes that autograd knows, while lookups are looked at; else None."""
        if self._looked >= LOOKED_AT or not self._lookups or getattr(tensor, "grad_fn", None) is None:
            return None
        shape = shape_of(tensor)
        return shape if shape is not None and len(shape) == 3 and shape[2] not in shape[:2] else None

    def _padded(self, shape: tuple[Any, ...], axis: int) -> list[tuple[Lookup, Any]]:
        """The lookups of as many steps and texts, and where they have padding, with the texts on the first axis."""
        wanted = (shape[1 - axis], shape[axis])
        found = [(one, _is_pad(one, axis)) for one in reversed(self._lookups) if one.pad >= 0]
        return [
            (one, is_pad)
            for one, is_pad in found
            if is_pad.shape == wanted and (ends_with_padding(is_pad) or begins_with_padding(is_pad))
        ]

    def after_step(self, step: Step) -> None:
        super().after_step(step)
        self._states.clear()

    def _judge(self, place: Place, is_wrong: bool, evidence: str, length: int = 0) -> None:
        batches = self._batches.setdefault(place, _Batches())
        batches.lengths |= {length} if length else set()
        batches.wrong += is_wrong
        batches.is_right = batches.is_right or not is_wrong
        batches.evidence = batches.evidence or evidence

    def at_end(self, ended_well: bool) -> None:
        for place, batches in self._batches.items():
            if batches.wrong >= LEAST and not batches.is_right and len(batches.lengths) != 1:
                self.found(place, batches.evidence, count=batches.wrong)
        self._batches.clear()


def _result(tensor: Any) -> tuple[int, int] | None:
    """Its number in autograd's graph: of the node, and among the node's results. Both output and state may be of one."""
    node = getattr(tensor, "grad_fn", None)
    return None if node is None else (node._sequence_nr(), tensor.output_nr)


def _is_pad(lookup: Lookup, axis: int) -> Any:
    """Where ids are padding, with the texts on the first axis."""
    is_pad = lookup.ids == lookup.pad
    return is_pad if axis == 1 else is_pad.T


def _last(is_pad: Any) -> str:
    texts, steps = is_pad.shape
    return f"the last of {steps} steps is padding in {int(is_pad[:, -1].sum())} of {texts} texts of a batch"


def _is_counted(plain: Any, *, marks: Any) -> bool:
    import torch

    of_padding = plain[torch.as_tensor(marks, device=plain.device)]
    return bool((of_padding != 0).any())
