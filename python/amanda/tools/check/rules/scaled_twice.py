"""scaled-twice."""

from __future__ import annotations

import dataclasses
from typing import Any

from amanda import OpContext
from amanda.toolkit import Arrays, Place
from amanda.toolkit.frameworks import shows_after_run

from ..graph import inputs
from ..rule import Rule
from ..shared_operators import OPERATORS

FACTORS = 1 / 260, 1 / 120  # for values from 0 to 255, which give 0 to 1, or -1 to 1
SCALED = 1.5  # values up to this are scaled already
LEAST = 2  # batches
MOST = 4  # that are read


class ScaledTwice(Rule):
    """Data that are scaled already are divided by 255 again: a model of `keras.applications` such as EfficientNet,
    MobileNetV3 or ConvNeXt, and one with a `Rescaling` layer, does that itself. It then gets values that are almost zero.

    It looks at products of data and a number such as 1/255 or 1/127.5 in graphs, and so in `fit`: eager code does not show
    what is data. It reads four batches, and reports a place in two batches or more, if no value is larger than 1.5, some
    are larger than 0.1, and none is negative.
    """

    name = "scaled-twice"
    sentence = "data from 0 to 1 are scaled once more"
    fix = "give the model values from 0 to 255, or leave its Rescaling out: include_preprocessing=False"
    is_of_tensorflow = True
    group = "of TensorFlow"
    ops = OPERATORS
    bad = """
        model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(x, x[:, :1], batch_size=8, verbose=0)
    """
    good = """
        model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(np.round(255 * x), x[:, :1], batch_size=8, verbose=0)
    """

    def begin(self) -> None:
        self._batches: dict[Place, _Batches] = {}

    def look(self, context: OpContext) -> None:
        if context.op.__name__ != "Mul" or shows_after_run(context):
            return
        if context.module_path.startswith("compile_loss"):  # labels that choose a weight
            return
        from amanda.toolkit.tensorflow import number_of

        for position, computed in enumerate(inputs(context)):
            factor = number_of(context.inputs[1 - position])
            is_data = computed is None or (computed.kind in _KEEPS and not computed.is_trained)
            if (
                factor is not None
                and FACTORS[0] < factor < FACTORS[1]
                and is_data
                and len(context.inputs[position].shape) > 1
            ):
                place = Place.of(context)
                context.insert_before_op(self._on_run, inputs=[position], place=place, factor=factor)

    def _on_run(self, data: Any, place: Place, factor: float) -> None:
        batches = self._batches.setdefault(place, _Batches(factor))
        if len(batches.largest) == MOST or not batches.are_scaled:
            return
        span = self.read_with(data, _span)
        batches.are_scaled = span is not None and span[0] >= 0 and 0.1 < span[1] <= SCALED
        batches.largest.append(span[1] if span is not None else 0.0)

    def at_end(self, ended_well: bool) -> None:
        for place, one in self._batches.items():
            if one.are_scaled and len(one.largest) >= LEAST:
                what = f"they are 0 to {max(one.largest):g}, and are multiplied by {one.factor:.4g}"
                self.found(place, what, count=len(one.largest))
        self._batches.clear()


_KEEPS = ("ResizeBilinear", "ResizeNearestNeighbor", "Reshape", "ExpandDims", "Cast", "Identity", "Pad", "PadV2")


@dataclasses.dataclass
class _Batches:
    factor: float
    largest: list[float] = dataclasses.field(default_factory=list)
    are_scaled: bool = True


def _span(data: Any, arrays: Arrays) -> tuple[float, float] | None:
    return arrays.extremes(data) if 0 not in data.shape and arrays.is_floating(data) else None
