"""softmax-before-loss."""

from __future__ import annotations

from amanda import OpContext

from ..graph import kind, producer
from ..rule import Rule, operands

_WRONG = {
    "cross_entropy_loss": {"Softmax": "takes logits and applies log_softmax itself"},
    "binary_cross_entropy_with_logits": {
        "Sigmoid": "takes logits and applies sigmoid itself",
        "Softmax": "takes logits and applies sigmoid itself",
    },
    "kl_div": {"Softmax": "takes log-probabilities", "Sigmoid": "takes log-probabilities"},
    "nll_loss_nd": {"Softmax": "takes log-probabilities", "Sigmoid": "takes log-probabilities"},
}


class SoftmaxBeforeLoss(Rule):
    """A loss that takes logits is given probabilities, so that softmax or sigmoid is applied twice and gradients are small;
    or `nll_loss` or `kl_div`, which take log-probabilities, are given probabilities.

    It looks through views and casts. `log_softmax` before `cross_entropy` is no finding: it changes no value.
    """

    name = "softmax-before-loss"
    sentence = "a loss gets probabilities"
    fix = (
        "give cross_entropy and binary_cross_entropy_with_logits the logits, nll_loss and kl_div the result of "
        "log_softmax"
    )
    ops = tuple(_WRONG)
    bad = """
        F.cross_entropy(model(x).softmax(-1), labels).backward()
    """
    good = """
        F.cross_entropy(model(x), labels).backward()
        F.nll_loss(model(x).log_softmax(-1), labels).backward()
        F.binary_cross_entropy(model(x).sigmoid(), torch.ones(4, 3)).backward()
    """

    def look(self, context: OpContext) -> None:
        given, op = operands(context), context.op.__name__
        found = kind(producer(given["self"]))
        if found in _WRONG[op]:
            self.found_in(context, f"{op} {_WRONG[op][found]}, and gets the result of {found.lower()}")
