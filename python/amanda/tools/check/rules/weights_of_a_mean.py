"""weights-of-a-mean."""

from __future__ import annotations

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frameworks import is_tensorflow

from ..computed import shape_of
from ..graph import inputs, kind
from ..rule import Rule
from ..shared_operators import OF_LOSSES
from ..traced_code import multiplies

_LOSSES = {
    *("NllLoss", "NllLoss2D", "MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "SoftMarginLoss"),
    *("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "KlDiv"),
}


class WeightsOfAMean(Rule):
    """Weights of examples multiply a loss that is one number already, the mean of the batch. Each example then counts the
    same, whatever its weight is: the mean is multiplied by the mean weight of the batch. In Keras, that is a loss function
    that takes the mean of all, with `sample_weight` or `class_weight`; in PyTorch, a loss without ``reduction="none"``.
    In Keras it says nothing of products that the program's own line computes.
    """

    name = "weights-of-a-mean"
    sentence = "weights of examples multiply the mean of their losses"
    fix = (
        'give a loss for each example: reduction="none" in PyTorch, ops.mean(..., axis=-1) in a loss function of Keras'
    )
    ops = OF_LOSSES
    bad = """
        loss = (F.cross_entropy(model(x), labels) * torch.tensor([1.0, 2.0, 1.0, 0.5])).mean()
        loss.backward()
    """
    good = """
        loss = (F.cross_entropy(model(x), labels, reduction="none") * torch.tensor([1.0, 2.0, 1.0, 0.5])).mean()
        loss.backward()
        (F.cross_entropy(model(x), labels) * torch.tensor(0.5)).backward()
    """

    def look(self, context: OpContext) -> None:
        if context.op.__name__ not in ("mul", "Mul"):
            return
        for one, other in ((0, 1), (1, 0)):
            if (
                shape_of(context.inputs[one]) == ()
                and self._are_weights(context, other)
                and self._is_loss(context, one)
            ):
                size = shape_of(context.inputs[other])
                shape = "(N,)" if is_tensorflow(context) else str(size)
                self.found_in(context, f"one number is multiplied by weights of shape {shape}")

    def _are_weights(self, context: OpContext, position: int) -> bool:
        shape = shape_of(context.inputs[position])
        if not shape or set(shape) == {1}:
            return False
        if is_tensorflow(context):
            if len(shape) != 1:
                return False
            computed = inputs(context)[position]
            return computed is None or not computed.is_trained
        return not context.inputs[position].requires_grad

    def _is_loss(self, context: OpContext, position: int) -> bool:
        if is_tensorflow(context):  # of `fit`
            computed = inputs(context)[position]
            is_of_loss = context.module_path.startswith("compile_loss") and computed is not None and computed.is_trained
            return is_of_loss and not multiplies(Place.of(context).source)
        return kind(getattr(context.inputs[position], "grad_fn", None)) in _LOSSES
