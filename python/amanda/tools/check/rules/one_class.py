"""one-class."""

from __future__ import annotations

from typing import Any

from amanda import OpContext

from ..graph import axis, kind, producer
from ..rule import Rule, operands

_OF_LOGITS = ("cross_entropy_loss", "nll_loss_nd")
_OF_PROBABILITIES = ("binary_cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


class OneClass(Rule):
    """A loss over classes gets one score per example. The softmax of one score is 1, whatever it is: the loss is always
    zero, or the same, and so are all gradients. It finds softmax in `cross_entropy`, and before a loss.

    A batch of one example is no finding: a contrastive loss has as many classes as examples.
    """

    name = "one-class"
    sentence = "softmax of one class is always 1"
    fix = "as many outputs as there are classes; or sigmoid, and binary_cross_entropy_with_logits, for one output"
    ops = (*_OF_LOGITS, *_OF_PROBABILITIES)
    bad = """
        F.cross_entropy(nn.Linear(4, 1)(x), torch.zeros(4, dtype=torch.long)).backward()
    """
    good = """
        F.binary_cross_entropy_with_logits(nn.Linear(4, 1)(x), torch.zeros(4, 1)).backward()
        F.cross_entropy(nn.Linear(4, 2)(x), torch.zeros(4, dtype=torch.long)).backward()
        F.cross_entropy(nn.Linear(4, 1)(x[:1]), torch.zeros(1, dtype=torch.long)).backward()
    """

    def look(self, context: OpContext) -> None:
        scores = operands(context)["self"]
        if scores.dim() < 2 or scores.shape[0] < 2:
            return
        if context.op.__name__ in _OF_LOGITS:
            if scores.shape[1] == 1:
                self.found_in(context, f"scores of shape {tuple(scores.shape)}, classes on axis 1")
        elif _is_of_one(scores):
            self.found_in(context, f"softmax over an axis of size 1, shape {tuple(scores.shape)}")


def _is_of_one(scores: Any) -> bool:
    node = producer(scores, keeps_axes=True)
    over = axis(node, scores.dim()) if kind(node) == "Softmax" else None
    return over is not None and scores.shape[over] == 1
