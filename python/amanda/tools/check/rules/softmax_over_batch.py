"""softmax-over-batch."""

from __future__ import annotations

from amanda import OpContext

from ..computed import shape_of
from ..graph import clipped, inputs, producer, producer_of, without_division
from ..rule import Rule


class SoftmaxOverBatch(Rule):
    """A loss over classes, which are on axis 1, gets a softmax over another axis, such as that of the batch. The
    probabilities of an example then do not add up to 1, and examples of a batch compete. The classes of `ctc_loss` are on
    the last axis."""

    name = "softmax-over-batch"
    sentence = "softmax runs over another axis than that of the classes"
    fix = "log_softmax(dim=1), or dim=-1 if the classes are last; softmax(axis=-1) in TensorFlow"
    ops = ("nll_loss_nd", "cross_entropy_loss", "ctc_loss", "tensorflow::Log")
    bad = """
        F.nll_loss(model(x).log_softmax(dim=0), labels).backward()
    """
    good = """
        F.nll_loss(model(x).log_softmax(dim=1), labels).backward()
        weights = model(x).softmax(dim=0)  # a mean of examples
        (weights * x[:, :3]).sum().backward()
    """

    def look(self, context: OpContext) -> None:
        if context.op.__name__ == "Log":
            given = shape_of(context.inputs[0])
            found = producer_of(without_division(clipped(inputs(context)[0]))[0])
            if given is None or len(given) != 2:
                return
        else:
            given, found = shape_of(context.inputs[0]), producer(context, context.op.input_names[0], keeps_axes=True)
        if found.kind not in ("softmax", "log_softmax") or given is None or len(given) < 2:
            return
        classes = len(given) - 1 if context.op.__name__ == "ctc_loss" else 1
        if found.axis is not None and found.axis != classes:
            self.found_in(context, f"shape {given}, softmax over axis {found.axis}, classes on axis {classes}")
