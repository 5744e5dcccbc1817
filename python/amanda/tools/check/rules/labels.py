"""labels."""

from __future__ import annotations

from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..rule import Rule, operands

MEAN = 1  # of `reduction`


class Labels(Rule):
    """Labels of a loss over classes are no classes: the program fails, on a GPU with a device assertion. Or all labels of a
    batch are ignored, so that the mean is NaN.

    It reads labels that are on the CPU; elsewhere, that would wait for the device.
    """

    name = "labels"
    sentence = "labels are no classes"
    fix = "count classes from 0, give ignore_index= the label that is to be ignored, leave out batches without labels"
    ops = ("cross_entropy_loss", "nll_loss_nd")
    bad = """
        for _ in range(2):
            F.cross_entropy(model(x), torch.full((4,), -100))
    """
    good = """
        labels[0] = -100
        F.cross_entropy(model(x), labels)
        F.cross_entropy(model(x), torch.ones(4, 3))  # probabilities
        F.cross_entropy(model(x), torch.full((4,), -100), reduction="sum")
    """

    def look(self, context: OpContext) -> None:
        given = operands(context)
        scores, labels = given["self"], given["target"]
        is_classes = not labels.is_floating_point() and labels.numel() and scores.dim() > 0
        if is_classes and labels.device.type == "cpu":
            context.insert_before_op(
                self._on_loss, inputs=["self", "target", "reduction", "ignore_index"], place=Place.of(context)
            )

    def _on_loss(self, scores: Any, labels: Any, reduction: int, ignored: int, place: Place) -> None:
        classes = scores.shape[1 if scores.dim() > 1 else 0]
        span = self.read(labels, _span)
        if span is None or (span[0] >= 0 and span[1] < classes and not span[0] == span[1] == ignored):
            return
        span = self.read(labels, lambda plain: _span(plain[plain != ignored]))
        if span is None:
            if reduction == MEAN:
                self.found(place, f"all {labels.numel()} labels of a batch are {ignored}, which is ignored")
        elif span[0] < 0 or span[1] >= classes:
            what = f"labels are {span[0]} to {span[1]}"
            self.found(place, f"{what}, and there are {classes} classes, from 0 to {classes - 1}")


def _span(labels: Any) -> tuple[int, int] | None:
    if not labels.numel():
        return None
    least, most = labels.aminmax()
    return least.item(), most.item()
