"""labels."""

from __future__ import annotations

from typing import Any

from amanda import OpContext
from amanda.toolkit import Arrays, Place

from ..graph import clipped, inputs
from ..rule import Rule, operands

MEAN = 1  # of `reduction`
MOSTLY = 0.5  # of the rows
_DENSE = "SoftmaxCrossEntropyWithLogits"
_SPARSE = "SparseSoftmaxCrossEntropyWithLogits"
_BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


class Labels(Rule):
    """Labels of a loss over classes are no classes: the program fails, on a GPU with a device assertion. Or all labels of a
    batch are ignored, so that the mean is NaN. Or a binary loss gets whole numbers other than 0 and 1, such as -1 or 2, or
    a softmax gets rows with several ones: the loss then has no minimum at the right answer. Labels of `ctc_loss` may not be
    its blank, by default 0.

    It reads labels that are on the CPU; elsewhere, that would wait for the device. TensorFlow shows an eager operator after
    it has run: one that fails is not seen, and TensorFlow itself names the label.
    """

    name = "labels"
    sentence = "labels are no classes"
    fix = "count classes from 0, give ignore_index= the label that is to be ignored, leave out batches without labels"
    ops = (
        "cross_entropy_loss",
        "nll_loss_nd",
        "ctc_loss",
        *_BINARY,
        *(f"tensorflow::{one}" for one in (_DENSE, _SPARSE, "Mul")),
    )
    bad = """
        for _ in range(2):
            F.cross_entropy(model(x), torch.full((4,), -100))
    """
    good = """
        labels[0] = -100
        F.cross_entropy(model(x), labels)
        F.cross_entropy(model(x), torch.ones(4, 3))  # probabilities
        F.cross_entropy(model(x), torch.full((4,), -100), reduction="sum")
        F.binary_cross_entropy_with_logits(model(x), torch.rand(4, 3))
    """

    def look(self, context: OpContext) -> None:
        op, place = context.op.__name__, Place.of(context)
        if op in (_DENSE, _SPARSE):
            routine = self._on_loss_of_tensorflow if op == _SPARSE else self._on_rows
            context.insert_before_op(routine, inputs=["features", "labels"], place=place)
        elif op == "Mul":
            position = _binary_labels(context)
            if position is not None:
                context.insert_before_op(self._on_binary, inputs=[position], place=place)
        elif op == "ctc_loss":
            asked = ["log_probs", "targets", "target_lengths", "blank"]
            context.insert_before_op(self._on_ctc_loss, inputs=asked, place=place)
        elif op in _BINARY:
            if operands(context)["target"].device.type == "cpu" and operands(context)["reduction"]:
                context.insert_before_op(self._on_binary, inputs=["target"], place=place)
        else:
            self._look_at_classes(context, place)

    def _look_at_classes(self, context: OpContext, place: Place) -> None:
        given = operands(context)
        scores, labels = given["self"], given["target"]
        is_classes = not labels.is_floating_point() and labels.numel() and scores.dim() > 0
        if is_classes and labels.device.type == "cpu":
            context.insert_before_op(self._on_loss, inputs=["self", "target", "reduction", "ignore_index"], place=place)

    def _on_loss(self, scores: Any, labels: Any, reduction: int, ignored: int, place: Place) -> None:
        classes = scores.shape[1 if scores.dim() > 1 else 0]
        span = self.read(labels, _span)
        if span is None or (span[0] >= 0 and span[1] < classes and not span[0] == span[1] == ignored):
            return
        span = self.read(labels, lambda plain: _span(plain[plain != ignored]))
        if span is None:
            if reduction == MEAN:
                self.found(place, f"all {labels.numel()} labels of a batch are {ignored}, which is ignored")
        else:
            self._judge(span, classes, place)

    def _on_ctc_loss(self, scores: Any, labels: Any, lengths: Any, blank: int, place: Place) -> None:
        if labels.device.type != "cpu" or getattr(lengths, "is_cuda", False):
            return
        lengths = lengths.tolist() if hasattr(lengths, "tolist") else lengths
        is_padded = labels.dim() == 2
        counted = self.read(labels, lambda plain: _without_padding(plain, lengths) if is_padded else plain.reshape(-1))
        span = None if counted is None else _span(counted)
        if span is None or counted is None:
            return
        self._judge(span, scores.shape[-1], place)
        blanks = counted.tolist().count(blank)
        if blanks:
            self.found(place, f"{blanks} of {counted.numel()} labels are {blank}, which is the blank", key="blank")

    def _on_loss_of_tensorflow(self, scores: Any, labels: Any, place: Place) -> None:
        span = self.read_with(labels, lambda plain, _: (int(plain.min()), int(plain.max())) if plain.size else None)
        if span is not None:
            self._judge(span, scores.shape[-1], place)

    def _judge(self, span: tuple[int, int], classes: int, place: Place) -> None:
        if span[0] < 0 or span[1] >= classes:
            what = f"labels are {span[0]} to {span[1]}"
            self.found(place, f"{what}, and there are {classes} classes, from 0 to {classes - 1}")

    def _on_rows(self, scores: Any, labels: Any, place: Place) -> None:
        most = self.read_with(labels, lambda plain, _: _ones(plain))
        if most:
            self.found(place, f"rows of labels have up to {most} ones, and a softmax gives one class")

    def _on_binary(self, labels: Any, place: Place) -> None:
        span = self.read_with(labels, _whole)
        if span is not None and (span[0] < 0 or span[1] > 1):
            self.found(place, f"labels are whole numbers from {span[0]:g} to {span[1]:g}, and the loss is for 0 and 1")


def _without_padding(labels: Any, lengths: list[int]) -> Any:
    import torch

    rows = [row[:length] for row, length in zip(labels, lengths, strict=False)]
    return torch.cat(rows) if rows else labels.reshape(-1)


def _span(labels: Any) -> tuple[int, int] | None:
    if not labels.numel():
        return None
    least, most = labels.aminmax()
    return least.item(), most.item()


def _ones(labels: Any) -> int:
    """The most ones in a row, if there are only zeros and ones, and most rows have several; else 0."""
    ones = (labels == 1).sum(-1)
    are_marks = labels.size and ((labels == 0) | (labels == 1)).all()
    return int(ones.max()) if are_marks and (ones > 1).mean() > MOSTLY else 0


def _whole(labels: Any, arrays: Arrays) -> tuple[float, float] | None:
    """The least and the largest label, if there are some, all are whole numbers, and none stands for a missing one."""
    is_empty = 0 in labels.shape
    if is_empty or not arrays.is_floating(labels) or not bool((labels == arrays.xp.floor(labels)).all()):
        return None
    least, most = arrays.extremes(labels)
    is_masked = least == -1 and most <= 1 and bool((labels == 0).any())  # examples without a label
    return None if is_masked else (least, most)


def _binary_labels(context: OpContext) -> int | None:
    """The position of labels that a binary loss of TensorFlow multiplies; None if it is no such product.

    `tf.nn.sigmoid_cross_entropy_with_logits` multiplies them by logits, of which it has taken the sign before, and a loss
    of Keras by the logarithm of clipped probabilities.
    """
    for position, (labels, other) in enumerate(zip(inputs(context), inputs(context)[::-1], strict=True)):
        if other is None or (labels is not None and labels.is_trained):
            continue
        is_logarithm = other.kind == "Log" and _is_of_one_unit_each(other.inputs[0])
        is_signed = {"GreaterEqual", "Neg"} <= other.used_by and not other.used_by.isdisjoint(("Select", "SelectV2"))
        if is_logarithm or is_signed:
            return position
    return None


def _is_of_one_unit_each(value: Any) -> bool:
    """Probabilities that are clipped, and not those of classes, which Keras divides by their sum before."""
    values = clipped(value)
    return values is not None and values.kind != "div"
