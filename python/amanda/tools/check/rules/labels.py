"""labels."""

from __future__ import annotations

from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..rule import Rule, operands


class Labels(Rule):
    """Labels of a loss over classes are no class (the program then fails, or on a GPU ends with a device assertion), or all
    labels of a batch are ignored, so that the mean is NaN.

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
        least, most = (int(one) for one in labels.aminmax()) if labels.numel() else (0, 0)
        if least >= 0 and most < classes and not least == most == ignored:
            return
        counted = labels[labels != ignored]
        if not counted.numel():
            if reduction == 1:
                self.found(place, f"all {labels.numel()} labels of a batch are {ignored}, which is ignored")
        elif int(counted.min()) < 0 or int(counted.max()) >= classes:
            span = f"labels are {int(counted.min())} to {int(counted.max())}"
            self.found(place, f"{span}, and there are {classes} classes, from 0 to {classes - 1}")
