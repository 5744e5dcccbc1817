"""target-out-of-reach."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from amanda import OpContext
from amanda.toolkit import Arrays, Place
from amanda.toolkit.frameworks import is_tensorflow

from ..computed import Computed, shape_of
from ..graph import Producer, inputs, producer, producer_of
from ..rule import Rule

_RANGES = {"sigmoid": (0.0, 1.0), "softmax": (0.0, 1.0), "tanh": (-1.0, 1.0), "relu": (0.0, float("inf"))}
_TEXTS = {"sigmoid": "0 to 1", "softmax": "0 to 1", "tanh": "-1 to 1", "relu": "0 and more"}
_MARGIN = 1e-3
LEAST = 0.1  # of a target's elements


@dataclasses.dataclass(eq=False)
class _Compared:
    place: Place
    predicted: Producer
    is_loss: bool = False
    waiting: list[str] = dataclasses.field(default_factory=list)  # evidence, until it is known to be a loss


class TargetOutOfReach(Rule):
    """A regression compares the result of an activation with a target that the activation cannot give, as one from 0 to
    100 with the result of a sigmoid: the activation saturates, and the loss stays. A tenth of a target's elements, or more,
    is out of reach.

    It looks at the losses of `torch.nn.functional` for regression, with targets on the CPU, and in TensorFlow at
    differences of which the square or the absolute value is taken.
    """

    name = "target-out-of-reach"
    sentence = "the last activation cannot give the values of the target"
    fix = (
        "no activation in the last layer; or scale the target to what it gives; numbers of classes are for a cross "
        "entropy, or become one-hot"
    )
    ops = (
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
        *(f"tensorflow::{name}" for name in ("Sub", "SquaredDifference", "Square", "Abs", "Pow")),
    )
    bad = """
        F.mse_loss(model(x).sigmoid(), torch.full((4, 3), 20.0)).backward()
    """
    good = """
        F.mse_loss(model(x), torch.full((4, 3), 20.0)).backward()
        F.mse_loss(model(x).sigmoid(), torch.rand(4, 3)).backward()
    """

    def begin(self) -> None:
        self._differences: list[tuple[tuple[Computed | None, ...], _Compared]] = []

    def look(self, context: OpContext) -> None:
        if not is_tensorflow(context):
            target = context.inputs[1]
            if target.grad_fn is None and not target.requires_grad and target.device.type == "cpu":
                self._compare(context, _Compared(Place.of(context), producer(context, "self"), True), 1)
            return
        given = inputs(context)
        if context.op.__name__ not in ("Sub", "SquaredDifference"):
            self._confirm(given[0])
            return
        for position, predicted in enumerate(given):
            target, shape = given[1 - position], shape_of(context.inputs[1 - position])
            if predicted is not None and (target is None or not target.is_trained) and shape:
                is_loss = context.op.__name__ == "SquaredDifference"
                compared = _Compared(Place.of(context), producer_of(predicted), is_loss)
                self._compare(context, compared, 1 - position)
                self._differences.append((given, compared))

    def _compare(self, context: OpContext, compared: _Compared, position: int) -> None:
        if compared.predicted.kind in _RANGES:
            context.insert_before_op(self._on_target, inputs=[position], compared=compared)

    def _confirm(self, difference: Computed | None) -> None:
        """The square of it is taken. An eager difference has run before."""
        for pair, compared in self._differences:
            if difference is not None and difference.kind == "sub" and difference.inputs == pair:
                compared.is_loss = True
                for evidence in compared.waiting:
                    self.found(compared.place, evidence)
                compared.waiting.clear()

    def _on_target(self, target: Any, compared: _Compared) -> None:
        predicted = compared.predicted
        outside = self.read_with(target, lambda plain, arrays: _outside(plain, arrays, *_RANGES[predicted.kind]))
        if outside is None or outside[0] < LEAST:
            return
        evidence = f"the target is {outside[1]:.4g} to {outside[2]:.4g}, and {predicted} gives {_TEXTS[predicted.kind]}"
        if compared.is_loss:
            self.found(compared.place, evidence)
        else:
            compared.waiting.append(evidence)


def _outside(target: Any, arrays: Arrays, least: float, most: float) -> tuple[float, float, float] | None:
    """The share of elements outside of a range, the least and the largest element; None if there are none."""
    size = math.prod(target.shape)
    if not size or not arrays.is_floating(target) or arrays.xp.isnan(target).any():
        return None
    is_outside = (target < least - _MARGIN) | (target > most + _MARGIN)
    return int(arrays.xp.count_nonzero(is_outside)) / size, *arrays.extremes(target)
