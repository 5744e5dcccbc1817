"""checkpoint-without-gain."""

from __future__ import annotations

import sys

from amanda import OpContext, ops
from amanda.toolkit import Place
from amanda.toolkit.frames import outwards, program_line

from ..rule import Rule

_PRODUCTS = (*ops.linear, *ops.matmul, *ops.convolution, *ops.transposed_convolution)
_KEEP_MORE = (
    *(*ops.attention, *ops.fused_layers, *ops.normalization, *ops.activation, "dropout", "embedding", "einsum", "cat"),
    *("add", "sub", "mul", "div", "pow", "exp", "log", "sqrt", "rsqrt", "square", "where", "softmax", "log_softmax"),
    *("sum", "mean", "amax", "norm", "max_pool2d", "avg_pool2d", "cross_entropy_loss", "mse_loss", "lstm", "gru"),
)


class CheckpointWithoutGain(Rule):
    """A checkpointed region consists of one matrix product or convolution. For its gradients, it keeps its input and its
    weight, and `checkpoint` keeps these as well: the product is computed twice, and no memory is saved.
    """

    name = "checkpoint-without-gain"
    sentence = "a checkpoint recomputes what costs no memory"
    fix = "put more into the region, up to the next narrow tensor, or leave the checkpoint out"
    is_advice = True
    ops = (*_PRODUCTS, *_KEEP_MORE)
    bad = """
        from torch.utils.checkpoint import checkpoint
        F.cross_entropy(model[1:](checkpoint(model[0], x, use_reentrant=False)), labels).backward()
    """
    good = """
        from torch.utils.checkpoint import checkpoint
        F.cross_entropy(checkpoint(model, x, use_reentrant=False), labels).backward()
    """

    def begin(self) -> None:
        self._regions: dict[
            str, dict[Place, bool]
        ] = {}  # by the line that calls `checkpoint`: operators, which are products

    def look(self, context: OpContext) -> None:
        from amanda.toolkit.torch import checkpointed_regions

        regions = checkpointed_regions()
        if regions and regions[-1][1] is None:
            known = self._regions.setdefault(_called_at(), {})
            known[Place.of(context)] = context.op.__name__ in _PRODUCTS

    def at_end(self, ended_well: bool) -> None:
        for line, operators in self._regions.items():
            if len(operators) == 1 and all(operators.values()):
                (place,) = operators
                self.found(place._replace(source=line), f"the region is {place.name} alone")
        self._regions.clear()


def _called_at() -> str:
    """The line that calls the innermost checkpointed region."""
    inside = "torch.utils.checkpoint"
    called = (frame for frame in outwards(sys._getframe(1)) if frame.f_globals.get("__name__") == inside)
    return program_line(next(called, None))
