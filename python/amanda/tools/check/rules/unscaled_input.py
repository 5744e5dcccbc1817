"""unscaled-input."""

from __future__ import annotations

from typing import Any

from amanda import OpContext, ops
from amanda.toolkit import Arrays, Place, frameworks
from amanda.toolkit.frameworks import is_tensorflow

from ..graph import inputs
from ..rule import Rule, operands

LARGE = 100.0
_OF_TENSORFLOW = ("MatMul", "Conv2D", "Conv3D", "DepthwiseConv2dNative")


class UnscaledInput(Rule):
    """The first layer gets values that are not negative and go up to 100 or more, such as bytes of an image. Its results
    are large, activations saturate, and steps that fit other layers are too large for it.

    It reads the data of a layer once. In PyTorch that is what no gradient goes to, on the CPU, with a weight that is
    trained; in a graph or function of TensorFlow what no layer and no variable has computed. Eager code of TensorFlow does
    not show that. A batch normalization after the layer makes up for the scale.
    """

    name = "unscaled-input"
    sentence = "the data of the first layer are not scaled"
    fix = "divide by the largest value, or subtract the mean and divide by the standard deviation"
    is_advice = True
    ops = (*ops.linear, *ops.convolution, *(f"tensorflow::{name}" for name in _OF_TENSORFLOW))
    bad = """
        model(torch.randint(256, (4, 4)).float())
    """
    good = """
        model(torch.randint(256, (4, 4)) / 255)
        model[2](model[0](x).detach().relu().clamp(max=1))
    """

    def begin(self) -> None:
        self._seen: set[Place] = set()

    def look(self, context: OpContext) -> None:
        if is_tensorflow(context):
            data, weight = inputs(context)
            is_data = not frameworks.shows_after_run(context) and (data is None or not data.is_trained)
            is_data = is_data and weight is not None and weight.kind == "variable"
        else:
            given = operands(context)
            is_data = given["input"].device.type == "cpu" and not given["input"].requires_grad
            is_data = is_data and given["weight"].requires_grad
        if is_data:
            context.insert_before_op(self._on_run, inputs=[0], place=Place.of(context))

    def _on_run(self, data: Any, place: Place) -> None:
        if place in self._seen:
            return
        self._seen.add(place)
        span = self.read_with(data, _span)
        if span is not None and span[0] >= 0 and span[1] >= LARGE:
            self.found(place, f"they are {span[0]:g} to {span[1]:g}")


def _span(data: Any, arrays: Arrays) -> tuple[float, float] | None:
    return arrays.extremes(data) if 0 not in data.shape and arrays.is_floating(data) else None
