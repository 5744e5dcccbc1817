"""loss-operands-swapped."""

from __future__ import annotations

from amanda import OpContext

from ..losses import LOSSES
from ..rule import Rule, operands

_NAMES = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy_loss")


class LossOperandsSwapped(Rule):
    """A cross entropy gets the target first, and the prediction second, as in scikit-learn. It is not symmetric: with
    logits in second place the loss has no minimum, and with probabilities the logarithm is taken of the target.

    It reports a loss of which the first operand has no gradient, and the second has one.
    """

    name = "loss-operands-swapped"
    sentence = "a loss gets the target in place of the prediction"
    fix = "the prediction first: F.binary_cross_entropy_with_logits(prediction, target)"
    ops = LOSSES
    bad = """
        F.binary_cross_entropy_with_logits(torch.ones(4, 3), model(x)).backward()
    """
    good = """
        F.binary_cross_entropy_with_logits(model(x), torch.ones(4, 3)).backward()
        F.cross_entropy(model(x), model(x).softmax(-1)).backward()  # both are learned
    """

    def look(self, context: OpContext) -> None:
        given = operands(context)
        if context.op.__name__ in _NAMES and given["target"].requires_grad and not given["self"].requires_grad:
            self.found_in(context, "the first operand has no gradient, and the second was computed by the model")
