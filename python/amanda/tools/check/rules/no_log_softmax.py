"""no-log-softmax."""

from __future__ import annotations

from amanda import OpContext

from ..graph import PRODUCTS, kind, producer
from ..rule import Rule, operands

_ACTIVATIONS = {"Relu", "LeakyRelu", "Gelu", "Tanh"}


class NoLogSoftmax(Rule):
    """`nll_loss` or `kl_div`, which take log-probabilities, get the result of a layer: nothing has made log-probabilities
    of it. The loss is then often negative, and has no minimum.

    It finds results of products, convolutions and activations, behind views and casts.
    """

    name = "no-log-softmax"
    sentence = "a loss that takes log-probabilities gets logits"
    fix = "give it log_softmax(logits, dim=1); or use cross_entropy, which takes logits"
    ops = ("nll_loss_nd", "kl_div")
    bad = """
        F.nll_loss(model(x), labels).backward()
    """
    good = """
        F.nll_loss(model(x).log_softmax(-1), labels).backward()
        F.nll_loss(model(x).softmax(-1).log(), labels).backward()
        F.kl_div(model(x).log_softmax(-1), torch.full((4, 3), 1 / 3), reduction="batchmean").backward()
    """

    def look(self, context: OpContext) -> None:
        found = kind(producer(operands(context)["self"]))
        if found in PRODUCTS or found in _ACTIVATIONS:
            self.found_in(
                context, f"{context.op.__name__.removesuffix('_nd')} gets the result of {found}, not of log_softmax"
            )
