"""regularizer-left-out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from amanda.toolkit import Place
from amanda.toolkit.frames import program_line

from ..gradients import few
from ..rule import Rule

if TYPE_CHECKING:
    from amanda.toolkit.tensorflow import Differentiated

_OF_LAYERS = frozenset(
    {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "BiasAdd", "AddV2"}
    | {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "Conv2DBackpropInput", "Conv3DBackpropInputV2"}
    | {"GatherV2", "ResourceGather"}
)


class RegularizerLeftOut(Rule):
    """A variable of Keras has a regularizer, and the loss that a program differentiates has no term of it: the regularizer
    does nothing. The own `train_step` of a model, and a loop with a tape, must add `model.losses` to the loss themselves.

    It looks at the operators that get the variable on the way to the loss, and says nothing if one of them is no product,
    convolution, bias or lookup. In eager code, one regularizer that was called is enough to say nothing. Regularizers of
    activities are not looked at.
    """

    name = "regularizer-left-out"
    sentence = "a regularizer has no part in the loss"
    fix = "differentiate loss_of(y, model(x)) + sum(model.losses), or self.compute_loss(x, y, y_pred)"
    is_of_tensorflow = True
    bad = """
        class Net(keras.Sequential):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = keras.losses.MeanSquaredError()(y, self(x, training=True))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
                return {"loss": loss}

        model = Net([keras.layers.Dense(1, kernel_regularizer="l2")])
        model.compile("sgd", jit_compile=False)
        model.fit(x, x[:, :1], verbose=0)
    """
    good = """
        class Net(keras.Sequential):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = self.compute_loss(x, y, self(x, training=True))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
                return {"loss": loss}

        model = Net([keras.layers.Dense(1, kernel_regularizer="l2")])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(x, x[:, :1], verbose=0)
    """

    def begin(self) -> None:
        self._left_out: dict[object, tuple[str, Place]] = {}  # name and loss, by variable
        self._of_eager_code: set[object] = set()
        self._regularized: set[object] = set()

    def after_gradients(self, call: Differentiated, eager_uses: Mapping[object, Mapping[str, Place]]) -> None:
        from amanda.toolkit.tensorflow import differentiated_in, uses_of

        is_eager = not differentiated_in(call.targets[0])
        for sought in call.variables:
            if not sought.is_regularized or not sought.has_gradient:
                continue
            key = sought.value.key
            if is_eager:
                self._of_eager_code.add(key)
                used_by = set(eager_uses.get(key, ()))
                loss = Place(None, "tape.gradient", "", program_line(sys._getframe(1)))
            else:
                uses, (operator, place) = uses_of(call.targets, key)
                used_by = set(uses)
                loss = Place(place.id, f"tensorflow::{operator}", place.module_path, place.source)
            if used_by and used_by <= _OF_LAYERS:
                self._left_out.setdefault(key, (sought.value.name, loss))
            else:
                self._regularized.add(key)

    def at_end(self, ended_well: bool) -> None:
        if self._regularized & self._of_eager_code:  # each line is looked at once: it may be for other variables, too
            self._regularized |= self._of_eager_code
        by_loss: dict[Place, list[str]] = {}
        for key, (name, loss) in self._left_out.items():
            if key not in self._regularized:
                by_loss.setdefault(loss, []).append(name)
        for loss, names in by_loss.items():
            have = "has a regularizer" if len(names) == 1 else "have regularizers"
            self.found(loss, f"{few(names)} {have}, and the loss does not depend on them by anything but the layers")
        self.begin()
