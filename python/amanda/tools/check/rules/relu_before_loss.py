"""relu-before-loss."""

from __future__ import annotations

from amanda import OpContext

from ..graph import producer
from ..losses import LOSSES
from ..rule import Rule

_WHAT = {
    "cross_entropy_loss": "a class below zero gets no gradient, and all of these are equally likely",
    "binary_cross_entropy_with_logits": "no probability is below 0.5",
}


class ReluBeforeLoss(Rule):
    """The last layer has a relu, and the loss takes logits: `cross_entropy`, or `binary_cross_entropy_with_logits`. Scores
    below zero are cut off, where they get no gradient. After a few bad steps no class is left. The relu is that of the
    hidden layers, which was repeated once too often.

    It looks through views and casts, and at nothing else: a mean of such values, as in SqueezeNet, is no finding.
    """

    name = "relu-before-loss"
    sentence = "a loss that takes logits gets the result of a relu"
    fix = "no activation after the last layer"
    ops = LOSSES
    bad = """
        F.cross_entropy(model(x).relu(), labels).backward()
    """
    good = """
        F.cross_entropy(model(x), labels).backward()
        F.cross_entropy(model(x)[:, :, None].relu().mean(-1), labels).backward()
    """

    def look(self, context: OpContext) -> None:
        name = context.op.__name__
        if name in _WHAT and producer(context, "self").kind in ("relu", "relu6"):
            self.found_in(context, f"{name} takes logits: {_WHAT[name]}")
