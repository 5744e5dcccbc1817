"""one-class."""

from __future__ import annotations

from typing import Any

from amanda import OpContext

from ..computed import shape_of
from ..graph import inputs, producer
from ..rule import Rule, operands

_LOSSES = ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")


class OneClass(Rule):
    """A softmax, or a loss that applies one, gets a layer's result with one unit. The softmax is 1 for each example, so
    that no gradient passes and nothing is learned."""

    name = "one-class"
    sentence = "softmax over one unit is always 1"
    fix = "sigmoid and a binary loss; or one unit for each class"
    ops = ("softmax", "log_softmax", "cross_entropy_loss", *(f"tensorflow::{one}" for one in ("Softmax", *_LOSSES)))
    bad = """
        F.mse_loss(nn.Linear(4, 1)(x).softmax(-1), torch.rand(4, 1)).backward()
    """
    good = """
        F.binary_cross_entropy(nn.Linear(4, 1)(x).sigmoid(), torch.rand(4, 1)).backward()
        weights = nn.Linear(4, 1)(x).softmax(0)  # over examples
        (weights * model(x)).sum().backward()
    """

    def look(self, context: OpContext) -> None:
        name = context.op.input_names[0]
        shape, over = shape_of(context.inputs[0]), _axis(context)
        if not shape or over is None or shape[over] != 1 or producer(context, name).kind != "linear":
            return
        known = inputs(context)
        if context.op.__name__ in _LOSSES and known[0] is not None and "softmax" in known[0].used_by:
            return  # Keras has taken the logits of a softmax, which is a finding itself
        self.found_in(context, f"it gets the result of {producer(context, name)}, of shape {shape}")


def _axis(context: OpContext) -> int | None:
    """The axis of the classes; None if labels are probabilities of one class, as may be meant."""
    given: dict[str, Any] = operands(context)
    if context.op.__name__ != "cross_entropy_loss":
        return int(given.get("dim", -1))
    return 1 if given["self"].dim() > 1 and not given["target"].is_floating_point() else None
