"""checkpoint-without-gain."""

from __future__ import annotations

import dataclasses

from amanda import OpContext, ops
from amanda.toolkit import Place

from ..modes import called_at
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
        self._regions: dict[int, _Region] = {}

    def look(self, context: OpContext) -> None:
        from amanda.toolkit.torch import checkpointed_regions

        regions = checkpointed_regions()
        if not regions or regions[-1][1] is not None:
            return
        known = self._regions.setdefault(id(regions[-1][0]), _Region(Place.of(context)))
        known.operators += 1
        if context.op.__name__ in _PRODUCTS:
            known.products += 1
            known.place = Place.of(context)._replace(source=called_at())

    def at_end(self, ended_well: bool) -> None:
        for region in self._regions.values():
            if region.operators == region.products == 1:
                self.found(region.place, f"the region is {region.place.name} alone")
        self._regions.clear()


@dataclasses.dataclass
class _Region:
    place: Place  # of its product
    operators: int = 0
    products: int = 0
