"""softmax-over-batch."""

from __future__ import annotations

from amanda import OpContext

from ..graph import axis, kind, producer
from ..rule import Rule, operands


class SoftmaxOverBatch(Rule):
    """A loss over classes, which are on axis 1, gets a softmax over another axis, such as that of the batch. The
    probabilities of an example then do not add up to 1, and examples of a batch compete."""

    name = "softmax-over-batch"
    sentence = "softmax runs over another axis than that of the classes"
    fix = "log_softmax(dim=1), or dim=-1 if the classes are last"
    ops = ("nll_loss_nd", "cross_entropy_loss")
    bad = """
        F.nll_loss(model(x).log_softmax(dim=0), labels).backward()
    """
    good = """
        F.nll_loss(model(x).log_softmax(dim=1), labels).backward()
        weights = model(x).softmax(dim=0)  # a mean of examples
        (weights * x[:, :3]).sum().backward()
    """

    def look(self, context: OpContext) -> None:
        given = operands(context)["self"]
        node = producer(given, keeps_axes=True)
        if kind(node) not in ("Softmax", "LogSoftmax") or given.dim() < 2:
            return
        over = axis(node, given.dim())
        if over is not None and over != 1:
            self.found_in(context, f"shape {tuple(given.shape)}, softmax over axis {over}, classes on axis 1")
