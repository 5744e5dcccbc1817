"""fractions-cut."""

from __future__ import annotations

import dataclasses
from typing import Any

from amanda import OpContext
from amanda.toolkit import Arrays, Place

from ..computed import Computed, shape_of
from ..graph import inputs
from ..rule import Rule
from ..shared_operators import OPERATORS

LEAST = 2  # batches
MOST = 4  # that are read
VALUES = 2  # that are left of all fractions
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class FractionsCut(Rule):
    """Numbers with fractions are cast to whole numbers, and hardly anything is left of them. Keras casts what an
    `Embedding` gets, and the labels of a sparse loss. Ids that were standardized or divided by the largest are then 0 or
    1, and labels that were divided by 255 are all 0.

    It looks at casts of data whose result is looked up in a table, or is the labels of a loss over classes. It reads four
    batches. It reports a place if most numbers in each have fractions, and the cast leaves two values or less.
    """

    name = "fractions-cut"
    sentence = "ids or labels have fractions, which a cast cuts off"
    fix = "give the embedding ids, and the loss the numbers of classes, and scale only features that are numbers"
    is_of_tensorflow = True
    group = "of TensorFlow"
    ops = OPERATORS
    bad = """
        model = keras.Sequential([keras.layers.Embedding(8, 4), keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(x, x[:, :1], batch_size=8, verbose=0)
    """
    good = """
        model = keras.Sequential([keras.layers.Embedding(8, 4), keras.layers.Flatten(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(np.round(7 * x), x[:, :1], batch_size=8, verbose=0)
    """

    def begin(self) -> None:
        self._casts: dict[tuple[str, Any], _Cast] = {}  # by module and shape
        self._used: dict[tuple[str, Any], Place] = {}  # by what takes the result

    def look(self, context: OpContext) -> None:
        name, given = context.op.__name__, inputs(context)
        if name == "Cast":
            is_whole = any(dtype in context.attribute("DstT") for dtype in ("int32", "int64"))
            if is_whole and context.inputs[0].dtype.name in _FLOATS and _is_data(given[0]):
                cast = self._casts.setdefault((context.module_path, shape_of(context.inputs[0])), _Cast())
                context.insert_before_op(self._on_run, inputs=[0], cast=cast)
        elif name in ("GatherV2", "ResourceGather", "SparseSoftmaxCrossEntropyWithLogits"):
            table = given[0] if name != "ResourceGather" else None
            if name != "GatherV2" or (table is not None and table.is_trained):
                cut = _cut(given[1])
                if cut is not None:
                    self._used.setdefault((cut.module_path, cut.input_shapes[0]), Place.of(context))

    def _on_run(self, data: Any, cast: _Cast) -> None:
        if cast.batches == MOST or not cast.is_wrong:
            return
        left = self.read_with(data, _left)
        cast.batches += 1
        cast.is_wrong = left is not None and left[2] <= VALUES
        if left is not None:
            cast.span = min(cast.span[0], left[0]), max(cast.span[1], left[1])

    def at_end(self, ended_well: bool) -> None:
        for key, place in self._used.items():
            cast = self._casts.get(key)
            if cast is not None and cast.is_wrong and cast.batches >= LEAST:
                least, most = cast.span
                cut = f"{int(least)}" if int(least) == int(most) else f"{int(least)} and {int(most)}"
                self.found(place, f"they are {least:.3g} to {most:.3g}, and are cast to {cut}", count=cast.batches)
        self.begin()


@dataclasses.dataclass
class _Cast:
    batches: int = 0
    is_wrong: bool = True
    span: tuple[float, float] = (float("inf"), float("-inf"))


def _is_data(value: Computed | None) -> bool:
    return value is None or (value.kind == "Cast" and value.inputs[0] is None)


def _cut(value: Computed | None) -> Computed | None:
    """The cast of data to whole numbers that a value is."""
    while value is not None and value.kind in ("Squeeze", "Reshape", "Identity", "Cast", "SelectV2"):
        before = value.inputs[2 if value.kind == "SelectV2" else 0]  # Keras adds the size to negative ids
        if value.kind == "Cast" and _is_data(before) and (before is None or before.dtype in _FLOATS):
            return value
        value = before
    return None


def _left(data: Any, arrays: Arrays) -> tuple[float, float, int] | None:
    """The least and the largest number, and how many values a cast leaves; None if most are whole numbers."""
    if 0 in data.shape or not arrays.is_floating(data):
        return None
    xp = arrays.xp
    least, most = arrays.extremes(data)
    is_whole = data == xp.floor(data)
    if not (abs(least) < 1e6 and abs(most) < 1e6) or float(is_whole.mean()) > 0.5:
        return None
    return least, most, int(most) - int(least) + 1
