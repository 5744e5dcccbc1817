"""softmax-before-loss."""

from __future__ import annotations

from amanda import OpContext

from ..graph import Producer, inputs, logits_of_sigmoid_loss, producer, producer_of
from ..rule import Rule

_SOFTMAX = "takes logits and applies softmax itself"
_SIGMOID = "takes logits and applies sigmoid itself"
_LOG = "takes log-probabilities"
_OF_SIGMOID = "sigmoid_cross_entropy_with_logits"
_WRONG = {
    "cross_entropy_loss": {"softmax": "takes logits and applies log_softmax itself"},
    "binary_cross_entropy_with_logits": {"sigmoid": _SIGMOID, "softmax": _SIGMOID},
    "nll_loss_nd": {"softmax": _LOG, "sigmoid": _LOG},
    "kl_div": {"softmax": _LOG, "sigmoid": _LOG},
    "ctc_loss": {"softmax": _LOG, "sigmoid": _LOG},
    "SoftmaxCrossEntropyWithLogits": {"softmax": _SOFTMAX},
    "SparseSoftmaxCrossEntropyWithLogits": {"softmax": _SOFTMAX},
    _OF_SIGMOID: {"sigmoid": _SIGMOID, "softmax": _SIGMOID},
}
_SCORES = {"SoftmaxCrossEntropyWithLogits": "features", "SparseSoftmaxCrossEntropyWithLogits": "features"}
_NAMES = {**_SCORES, "ctc_loss": "log_probs"}  # of the scores; else "self"


class SoftmaxBeforeLoss(Rule):
    """A loss that takes logits is given probabilities, so that softmax or sigmoid is applied twice and gradients are small;
    or `nll_loss`, `kl_div` or `ctc_loss`, which take log-probabilities, are given probabilities.

    It looks through views and casts. `log_softmax` before `cross_entropy` is no finding: it changes no value. Keras takes
    the logits of a softmax or sigmoid itself, where it finds them, and warns: then there is nothing to find.
    """

    name = "softmax-before-loss"
    sentence = "a loss gets probabilities"
    fix = (
        "give cross_entropy and losses with logits the logits, nll_loss, kl_div and ctc_loss the result of log_softmax"
    )
    ops = (
        *("cross_entropy_loss", "binary_cross_entropy_with_logits", "nll_loss_nd", "kl_div", "ctc_loss"),
        *(f"tensorflow::{name}" for name in (*_SCORES, "Log1p")),
    )
    bad = """
        F.cross_entropy(model(x).softmax(-1), labels).backward()
    """
    good = """
        F.cross_entropy(model(x), labels).backward()
        F.nll_loss(model(x).log_softmax(-1), labels).backward()
        F.binary_cross_entropy(model(x).sigmoid(), torch.ones(4, 3)).backward()
    """

    def look(self, context: OpContext) -> None:
        op, found = context.op.__name__, Producer()
        if op == "Log1p":
            op, found = _OF_SIGMOID, producer_of(logits_of_sigmoid_loss(inputs(context)[0]))
        else:
            found = producer(context, _NAMES.get(op, "self"))
        if found.kind in _WRONG[op]:
            self.found_in(context, f"{op} {_WRONG[op][found.kind]}, and gets the result of {found}")
