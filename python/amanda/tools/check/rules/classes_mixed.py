"""classes-mixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from amanda import OpContext

from ..graph import kind
from ..rule import Rule, operands

_SAME_ROWS = ("LogSoftmax", "ToCopy", "Clone", "Alias")
_VIEWS = ("View", "UnsafeView", "ReshapeAlias")


class ClassesMixed(Rule):
    """A view makes rows of scores that mix classes and positions: ``scores.view(-1, classes)`` of scores of shape (N,
    classes, H, W), or (N, classes, T). A view does not move the axis of classes to the end: each row has the scores of one
    class at several positions.

    It looks at the view before a loss over classes, as autograd knows it. It says nothing where the last axis may be that
    of the classes, too.
    """

    name = "classes-mixed"
    sentence = "rows of scores mix classes and positions"
    fix = (
        "give the loss scores of shape (N, classes, H, W), or move the axis: scores.movedim(1, -1).reshape(-1, classes)"
    )
    ops = ("cross_entropy_loss", "nll_loss_nd")
    bad = """
        scores = nn.Conv2d(4, 3, 1)(torch.randn(2, 4, 5, 5))
        F.cross_entropy(scores.view(-1, 3), torch.randint(3, (50,))).backward()
    """
    good = """
        scores = nn.Conv2d(4, 3, 1)(torch.randn(2, 4, 5, 5))
        F.cross_entropy(scores.movedim(1, -1).reshape(-1, 3), torch.randint(3, (50,))).backward()
        F.cross_entropy(nn.Conv2d(4, 3, 5)(torch.randn(2, 4, 5, 5)).view(-1, 3), torch.tensor([0, 1])).backward()
    """

    def look(self, context: OpContext) -> None:
        given = operands(context)
        scores, target = given["self"], given["target"]
        if scores.dim() != 2 or target.is_floating_point():
            return
        node = scores.grad_fn
        while kind(node) in _SAME_ROWS:
            node = node.next_functions[0][0]
        if kind(node) in _VIEWS and tuple(node._input_metadata[0].shape) == tuple(scores.shape):
            before = tuple(node._saved_self_sym_sizes)
            if _mixes(before, scores.shape[1]):
                self.found_in(context, f"a view makes {before} to {tuple(scores.shape)}")


def _mixes(before: Sequence[Any], classes: int) -> bool:
    """Classes are on axis 1 of the shape, and on no other one; not as groups of them on the last axis either."""
    if len(before) < 3 or before[1] != classes or classes == 1 or math.prod(before[2:]) == 1:
        return False
    return classes not in before[2:] and (len(before) > 3 or before[-1] % classes != 0)
