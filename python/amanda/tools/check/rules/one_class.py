"""one-class."""

from __future__ import annotations

from typing import Any

from amanda import OpContext
from amanda.toolkit.frameworks import is_tensorflow

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
        shape, found = shape_of(context.inputs[0]), producer(context, context.op.input_names[0], keeps_axes=True)
        if not shape or len(shape) < 2 or found.kind != "linear" or shape[_units(context, shape)] != 1:
            return
        known = inputs(context)
        if context.op.__name__ in _LOSSES and known[0] is not None and "softmax" in known[0].used_by:
            return  # Keras has taken the logits of a softmax, which is a finding itself
        if _is_over_units(context, shape):
            self.found_in(context, f"it gets the result of {found}, of shape {shape}")


def _units(context: OpContext, shape: tuple[int | None, ...]) -> int:
    """The axis of a layer's units."""
    return len(shape) - 1 if is_tensorflow(context) else 1


def _is_over_units(context: OpContext, shape: tuple[int | None, ...]) -> bool:
    """The softmax runs over the units, and not over the steps of an attention; or a loss gets classes as whole numbers:
    probabilities of one class may be meant."""
    given: dict[str, Any] = operands(context)
    if context.op.__name__ == "cross_entropy_loss":
        return not given["target"].is_floating_point()
    return "dim" not in given or int(given["dim"]) % len(shape) == _units(context, shape)
