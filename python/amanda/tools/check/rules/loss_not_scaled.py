"""loss-not-scaled."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from amanda.toolkit import Place

from ..rule import Rule

LEAST = 2  # steps


class LossNotScaled(Rule):
    """An optimizer of Keras divides gradients by a loss scale, and the program has not multiplied the loss by it. Gradients
    are some ten thousand times too small, and the model hardly learns. `compile` puts the optimizer of a model with the
    policy "mixed_float16" into a `LossScaleOptimizer`: the own `train_step` of such a model, and a loop with a tape, must
    call `scale_loss`. A program that multiplies by `dynamic_scale` itself is found, too.
    """

    name = "loss-not-scaled"
    sentence = "gradients are divided by a loss scale that the loss was not multiplied by"
    fix = "differentiate optimizer.scale_loss(loss), and report the loss itself"
    is_of_tensorflow = True
    bad = """
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, dtype="mixed_float16")])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
        for _ in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    """
    good = """
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, dtype="mixed_float16")])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
        for _ in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    """

    def begin(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # steps

    def after_keras_step(self, optimizer: Any, steps: int, place: Callable[[], Place]) -> None:
        from amanda.toolkit.tensorflow import loss_scale_of

        self._known[optimizer] = self._known.get(optimizer, 0) + 1
        if self._known[optimizer] < LEAST:
            return
        found = loss_scale_of(optimizer)
        if found is not None and not found.is_used and found.scale != 1:
            count = LEAST if self._known[optimizer] == LEAST else 1
            what = f"{found.owner} divides by {found.scale:,.6g}, and its scale_loss was not called"
            self.found(place(), what, count=count)
