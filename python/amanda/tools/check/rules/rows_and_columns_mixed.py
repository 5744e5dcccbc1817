"""rows-and-columns-mixed."""

from __future__ import annotations

from amanda import OpContext

from ..computed import shape_of
from ..rule import Rule
from ..shared_operators import OPERATORS


class RowsAndColumnsMixed(Rule):
    """Images of shape (N, H, W, C) are reshaped to sequences of shape (N, W, H * C), as for the text in a captcha. A
    reshape does not move axes: each step gets parts of several rows and columns, and not one column.

    It looks at shapes alone, and says nothing where H and W are equal.
    """

    name = "rows-and-columns-mixed"
    sentence = "a reshape mixes the rows and columns of images"
    fix = "exchange the axes first: Permute((2, 1, 3)) before Reshape((W, H * C))"
    is_of_tensorflow = True
    group = "of TensorFlow"
    ops = OPERATORS
    bad = """
        images = np.reshape(x, (4, 4, 8, 1))
        model = keras.Sequential([keras.layers.Conv2D(2, 1), keras.layers.Reshape((8, 8)), keras.layers.GRU(3)])
        model(images)
    """
    good = """
        images = np.reshape(x, (4, 4, 8, 1))
        exchange = keras.layers.Permute((2, 1, 3))
        convolution, steps = keras.layers.Conv2D(2, 1), keras.layers.Reshape((8, 8))
        model = keras.Sequential([convolution, exchange, steps, keras.layers.GRU(3)])
        model(images)
    """

    def look(self, context: OpContext) -> None:
        if context.op.__name__ != "Reshape":
            return
        from amanda.toolkit.tensorflow import sizes_of

        given, made = shape_of(context.inputs[0]), sizes_of(context.inputs[1])
        if given is None or made is None or len(given) != 4 or len(made) != 3:
            return
        _, height, width, channels = given
        if (
            height is None
            or width is None
            or channels is None
            or height == width
            or height == 1
            or width == 1
            or channels == 1
        ):
            return
        if made[1:] == [width, height * channels]:
            shapes = f"(N, {height}, {width}, {channels}) becomes (N, {made[1]}, {made[2]})"
            self.found_in(context, f"{shapes}, and {width} is the size of the third axis")
