"""cosines-without-scale."""

from __future__ import annotations

import math
from typing import Any

from amanda import OpContext

from ..graph import kind, node_behind, passed
from ..losses import LOSSES
from ..rule import Rule, operands

LEAST = 8  # classes
_NORMS = ("LinalgVectorNorm", "Norm")


class CosinesWithoutScale(Rule):
    """A cross entropy gets products of normalized vectors, as in contrastive learning: cosines, from -1 to 1. No factor
    scales them, so that the softmax is nearly even, and the loss cannot fall below a bound that is close to where it
    begins: with n classes, log(1 + (n - 1) / e²).

    It looks at the product before the loss, as autograd knows it, with eight classes or more. Both operands must be
    divided by their norm, as `F.normalize` does. A temperature of 1 that the program divides by is no finding.
    """

    name = "cosines-without-scale"
    sentence = "a loss over classes gets cosines, whose range is too small"
    fix = "divide by a temperature, such as 0.07: logits = a @ b.T / temperature; or multiply by a learned scale"
    ops = LOSSES
    bad = """
        one, other = F.normalize(model(torch.randn(8, 4)), dim=-1), F.normalize(model(torch.randn(8, 4)), dim=-1)
        F.cross_entropy(one @ other.T, torch.arange(8)).backward()
    """
    good = """
        one, other = F.normalize(model(torch.randn(8, 4)), dim=-1), F.normalize(model(torch.randn(8, 4)), dim=-1)
        F.cross_entropy(one @ other.T / 0.07, torch.arange(8)).backward(retain_graph=True)
        F.cross_entropy(model(torch.randn(8, 4)) @ other.T, torch.arange(8)).backward()
    """

    def look(self, context: OpContext) -> None:
        scores = operands(context)["self"]
        if context.op.__name__ != "cross_entropy_loss" or scores.dim() < 2 or scores.shape[1] < LEAST:
            return
        product = node_behind(scores)
        if kind(product) not in ("Mm", "Bmm"):
            return
        if all(_is_normalized(node) for node, _ in product.next_functions):
            classes = scores.shape[1]
            least = math.log1p((classes - 1) * math.exp(-2))
            self.found_in(context, f"cosines of {classes} classes: the loss cannot fall below {least:.3g}")


def _is_normalized(node: Any) -> bool:
    """The values are divided by their norm."""
    node = passed(node)
    if kind(node) != "Div":
        return False
    below = passed(node.next_functions[1][0])
    if kind(below) in ("ClampMin", "Clamp"):
        below = passed(below.next_functions[0][0])
    return kind(below) in _NORMS
