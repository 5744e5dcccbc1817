"""weights-without-effect."""

from __future__ import annotations

from typing import Any

from amanda import OpContext

from ..graph import kind
from ..rule import Rule

_LOSSES = ("NllLoss", "NllLoss2D", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy",
           "BinaryCrossEntropyWithLogits")  # fmt: skip
_MEANS = ("Mean", "Sum")


class WeightsWithoutEffect(Rule):
    """A loss is multiplied by a mask, or by a weight for each example, when it is one number already, the mean of all. Each
    weight then multiplies the same number: what the mask leaves out counts as much as the rest.

    It looks at products of the mean that a loss of `torch.nn.functional` returns, and a tensor of several elements that has
    no gradient.
    """

    name = "weights-without-effect"
    sentence = "weights of examples multiply the mean of their losses"
    fix = "give the loss reduction='none', multiply, and take the mean then"
    ops = ("mul", "_foreach_norm", "linalg_vector_norm", "norm")  # as "clip-before-unscale"
    bad = """
        loss = F.cross_entropy(model(x), labels)
        (loss * torch.tensor([1.0, 1.0, 0.0, 0.0])).sum().backward()
    """
    good = """
        loss = F.cross_entropy(model(x), labels, reduction="none")
        (loss * torch.tensor([1.0, 1.0, 0.0, 0.0])).sum().backward()
        (F.cross_entropy(model(x), labels) * torch.tensor([0.5])).backward()
    """

    def look(self, context: OpContext) -> None:
        if context.op.__name__ != "mul":
            return
        for loss, weights in (context.inputs[:2], context.inputs[1::-1]):
            if _is_mean(loss) and hasattr(weights, "dim") and weights.numel() > 1 and not weights.requires_grad:
                self.found_in(context, f"a loss of one number, and weights of shape {tuple(weights.shape)}")
                return


def _is_mean(loss: Any) -> bool:
    if getattr(loss, "grad_fn", None) is None or loss.dim():
        return False
    node = loss.grad_fn
    if kind(node) in _MEANS and node.next_functions:
        node = node.next_functions[0][0]
    return kind(node) in _LOSSES
