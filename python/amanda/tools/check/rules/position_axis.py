"""position-axis."""

from __future__ import annotations

import dataclasses
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..computed import shape_of
from ..gradients import storage
from ..modes import called_at, running
from ..rule import Rule, operands

MOST = 8  # places that are followed


@dataclasses.dataclass
class _Added:
    place: Place
    axis: int  # along which the encoding differs
    sizes: tuple[int, int] = (0, 0)  # of the last run: those of this axis and the other one
    model: int = 0  # the identity of the outermost module that ran
    is_right: bool = False  # attention has gone over this axis since
    is_wrong: bool = False  # over the other one
    wrong: int = 0
    right: int = 0
    evidence: str = ""

    def count(self) -> None:
        """The run is over."""
        self.right += self.is_right
        self.wrong += self.is_wrong and not self.is_right
        self.sizes, self.is_right, self.is_wrong = (0, 0), False, False


class PositionAxis(Rule):
    """An encoding of positions is added along the batch: one for tensors of shape (steps, examples, features), as in
    PyTorch's tutorial, and the layers have ``batch_first=True``, or the other way round. All steps of an example then get
    the same encoding, and attention does not know their order.

    It looks at sums with a part of a buffer, or of a parameter, that differs along one of the first two axes, and at the
    attention that follows: by `F.scaled_dot_product_attention` or a softmax. It reports a sum if attention goes over the
    other axis alone, in each run. It says nothing where there are as many steps as examples, and about encodings that an
    embedding looks up: those may belong to the examples.
    """

    name = "position-axis"
    sentence = "an encoding of positions differs from example to example, and not from step to step"
    fix = "make it of shape (1, steps, features) for batch_first=True, else of (steps, 1, features)"
    ops = ("add", "add_", "scaled_dot_product_attention", "softmax")
    bad = """
        class Encoding(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.randn(32, 1, 8))
            def forward(self, x):
                return x + self.table[:x.size(0)]
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        net = nn.Sequential(Encoding(), layer)
        for _ in range(2):
            net(torch.randn(4, 6, 8)).mean().backward()
    """
    good = """
        class Encoding(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.randn(32, 1, 8))
            def forward(self, x):
                return x + self.table[:x.size(0)]
        layer = nn.TransformerEncoderLayer(8, 2, 16)
        net = nn.Sequential(Encoding(), layer)
        for _ in range(2):
            net(torch.randn(4, 6, 8)).mean().backward()
    """

    def begin(self) -> None:
        self._sums: dict[Place, _Added] = {}

    def look(self, context: OpContext) -> None:
        name, given = context.op.__name__, operands(context)
        if name == "scaled_dot_product_attention":
            if self._sums and given["query"].dim() == 4:
                context.insert_before_op(self._on_attention, inputs=["query", "key"])
        elif name == "softmax":
            if self._sums and given["self"].dim() in (3, 4):
                context.insert_before_op(self._on_softmax, inputs=["self"])
        elif len(self._sums) < MOST:
            axis = _axis(given["self"], given["other"])
            if axis is not None and _is_of_a_module(given["other"]):
                place = Place.of(context)
                added = self._sums.setdefault(place, _Added(place._replace(source=place.source or called_at()), axis))
                context.insert_before_op(self._on_sum, inputs=["self"], added=added)

    def _on_sum(self, given: Any, added: _Added) -> None:
        added.count()
        if given.dim() == 3:
            added.sizes, added.model = (given.shape[added.axis], given.shape[1 - added.axis]), _model()

    def _on_attention(self, query: Any, key: Any) -> None:
        if query.shape[2] == key.shape[2]:
            self._judge(query.shape[0], query.shape[2])

    def _on_softmax(self, scores: Any) -> None:
        if scores.shape[-1] == scores.shape[-2]:
            self._judge(scores.shape[0], scores.shape[-1])

    def _judge(self, examples: int, steps: int) -> None:
        """`examples`: may be as many for each head."""
        for added in self._sums.values():
            along, other = added.sizes
            if not along or added.model != _model():
                continue
            added.is_right = added.is_right or steps == along
            if steps == other and examples % along == 0:
                added.is_wrong = True
                added.evidence = f"it has {along} parts for {along} examples, and attention goes over {other} steps"

    def at_end(self, ended_well: bool) -> None:
        for added in self._sums.values():
            added.count()
            if added.wrong and not added.right:
                self.found(added.place, added.evidence, count=added.wrong)
            added.wrong = added.right = 0


def _model() -> int:
    return next((id(one) for one in running()[-1:]), 0)


def _axis(given: Any, other: Any) -> int | None:
    """The one of the first two axes along which `other` differs, and the other one does not; None if there is none."""
    shape, own = shape_of(other) or (), shape_of(given) or ()
    if len(own) != 3 or len(shape) not in (2, 3) or 1 in own[:2] or own[0] == own[1] or shape[-1] != own[2]:
        return None
    sizes = (1, *shape) if len(shape) == 2 else tuple(shape)
    return {(own[0], 1): 0, (1, own[1]): 1}.get((sizes[0], sizes[1]))


def _is_of_a_module(tensor: Any) -> bool:
    """It is in the memory of a buffer, or a parameter, of the model that runs."""
    memory = storage(tensor)
    parts = (part for model in running()[-1:] for part in model.modules())
    held = (one for part in parts for one in (*part._buffers.values(), *part._parameters.values()))
    return memory is not None and any(one is not None and storage(one) == memory for one in held)
