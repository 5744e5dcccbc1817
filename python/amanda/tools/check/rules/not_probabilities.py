"""not-probabilities."""

from __future__ import annotations

from amanda import OpContext

from ..graph import Producer, clipped, inputs, producer, producer_of, without_division
from ..rule import Rule

_ANY = ("linear", "relu", "relu6", "leaky_relu", "elu", "selu", "softplus", "tanh", "batch_norm")
_OF_LOGARITHMS = {"nll_loss_nd": "self", "kl_div": "self", "ctc_loss": "log_probs"}
_SPARSE = "SparseSoftmaxCrossEntropyWithLogits"


class NotProbabilities(Rule):
    """A loss over probabilities gets values that no softmax and no sigmoid has made. `nll_loss`, `kl_div` or
    `ctc_loss` gets the result of a layer. Or a loss of Keras, by default `from_logits=False`, gets that of a layer without
    an activation, or with relu or tanh. Keras clips it to what probabilities can be, and most gradients are zero.

    A loss over classes that gets the result of a sigmoid is a finding, too: those of an example do not add up to 1.
    """

    name = "not-probabilities"
    sentence = "a loss over probabilities gets other values"
    fix = (
        "log_softmax before nll_loss, kl_div and ctc_loss; in Keras, from_logits=True, or activation='softmax', or "
        "'sigmoid' for one unit"
    )
    ops = (*_OF_LOGARITHMS, "tensorflow::Log", f"tensorflow::{_SPARSE}")
    bad = """
        F.nll_loss(model(x), labels).backward()
    """
    good = """
        F.nll_loss(model(x).log_softmax(-1), labels).backward()
        F.nll_loss(model(x).softmax(-1).log(), labels).backward()
        F.kl_div(model(x).log_softmax(-1), torch.full((4, 3), 1 / 3), reduction="batchmean").backward()
        F.cross_entropy(model(x), labels).backward()
    """

    def look(self, context: OpContext) -> None:
        found, are_classes = _given(context)
        if found.kind in _ANY or (found.kind == "sigmoid" and are_classes):
            what = "a softmax" if are_classes else "a softmax or sigmoid"
            self.found_in(context, f"it gets the result of {found}, and not of {what}")


def _given(context: OpContext) -> tuple[Producer, bool]:
    """The producer of the probabilities, and whether they are known to be of classes."""
    op = context.op.__name__
    if op in _OF_LOGARITHMS:
        found = producer(context, _OF_LOGARITHMS[op])
        return (Producer() if found.kind == "sigmoid" else found), True  # that is for "softmax-before-loss"
    value = inputs(context)[0]
    if op == "Log":
        values, is_divided = without_division(clipped(value))
        return producer_of(values), is_divided
    found = producer_of(clipped(value.inputs[0])) if value is not None and value.kind == "Log" else Producer()
    return (found if found.kind == "sigmoid" else Producer()), True  # others are found at the logarithm
