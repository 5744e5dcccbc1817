"""Programs with mistakes about functions that TensorFlow traces, and about objects that each step makes."""

from __future__ import annotations

import random
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from check_programs import compiled, data, dense, named_by, right
from keras import layers, ops


def steps(made: Any, given: Any, *, count: int = 16) -> None:
    """`made()` is the step, as a tf.function."""
    optimizer, weight = keras.optimizers.SGD(0.01), tf.Variable(tf.ones((4, 1)))
    for i in range(count):
        optimizer.apply_gradients([(made()(weight, given(i)), weight)])


def gradient(weight: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weight))
    return tape.gradient(loss, weight)


def scaled_gradient(weight: Any, factor: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = factor * tf.reduce_mean(tf.square(weight))
    return tape.gradient(loss, weight)


@named_by("traced-again")
def a_function_that_is_made_in_the_loop(wrong: bool) -> None:
    once, x = tf.function(gradient), tf.constant(data(4))
    steps(lambda: tf.function(gradient) if wrong else once, lambda i: x)


@named_by("traced-again")
def tensors_of_other_shapes(wrong: bool) -> None:
    once = tf.function(gradient, reduce_retracing=not wrong)
    steps(lambda: once, lambda i: tf.constant(data(4)[: 3 + i]))


@named_by("traced-again")
def numbers_of_python(wrong: bool) -> None:
    once = tf.function(scaled_gradient)
    steps(lambda: once, lambda i: 0.1 * i if wrong else tf.constant(0.1 * i))


@right
def a_model_for_each_fold() -> None:
    """Each has functions of its own."""
    for _ in range(3):
        compiled(dense(8, 1, inputs=4), "mse").fit(data(4), data(1), batch_size=8, epochs=2, verbose=0)


@right
def a_function_for_each_of_many_models() -> None:
    def made() -> Any:
        weight, optimizer = tf.Variable(tf.ones((4, 1))), keras.optimizers.SGD(0.01)

        @tf.function
        def of_an_ensemble(x: Any) -> Any:
            return gradient(weight, x)

        return lambda x: optimizer.apply_gradients([(of_an_ensemble(x), weight)])

    members = [made() for _ in range(14)]
    for _ in range(2):
        for each in members:
            each(tf.constant(data(4)))


class Noisy(layers.Layer):
    def __init__(self, *, by_numpy: bool) -> None:
        super().__init__()
        self.by_numpy = by_numpy

    def call(self, x: Any) -> Any:
        return self.by_python(x) if self.by_numpy else x + tf.random.normal((1, 4))

    def by_python(self, x: Any) -> Any:
        return x + np.random.normal(size=(1, 4)).astype("float32")


@named_by("drawn-once")
def noise_of_numpy(wrong: bool) -> None:
    model = keras.Sequential([keras.Input((4,)), Noisy(by_numpy=wrong), layers.Dense(1)])
    compiled(model, "mse").fit(data(4), data(1), batch_size=8, verbose=0)


@right
def numbers_that_are_drawn_around_a_function() -> None:
    """By the function that calls it, and by one that TensorFlow calls in each run."""
    x = np.random.rand(32, 4).astype("float32")

    def drawn() -> Any:
        return np.float32(np.random.rand())

    @tf.function
    def scaled(given: Any) -> Any:
        return given * tf.numpy_function(drawn, [], tf.float32)

    for _ in range(3):
        scaled(tf.constant(x * random.random()))
    model = compiled(dense(8, 1, inputs=4), "mse")
    model.fit(x, data(1), batch_size=8, verbose=0)


class Annealed(keras.Sequential):
    """A term of the loss has a weight, which the program raises."""

    weight: Any = 0.0
    epoch = 0

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *given: Any, **more: Any) -> Any:
        return ops.mean((y_pred - y) ** 2) + self.weight * ops.mean(y_pred**2)


@named_by("changed-after-trace")
def a_weight_that_a_callback_raises(wrong: bool) -> None:
    model = Annealed([keras.Input((4,)), layers.Dense(1)])
    if not wrong:
        model.weight = keras.Variable(0.0, trainable=False)

    def begin(epoch: int, logs: Any) -> None:
        model.epoch = epoch
        if wrong:
            model.weight = epoch / 4
        else:
            model.weight.assign(epoch / 4)

    raising = keras.callbacks.LambdaCallback(on_epoch_begin=begin)
    compiled(model, None).fit(data(4), data(1), batch_size=8, epochs=4, verbose=0, callbacks=[raising])


@right
def a_number_that_changes_before_it_is_traced_again() -> None:
    model = Annealed([keras.Input((4,)), layers.Dense(1)])
    for epoch in range(3):
        model.weight = epoch / 4
        compiled(model, None).fit(data(4), data(1), batch_size=8, verbose=0)


@right
def a_number_of_eager_code() -> None:
    model = Annealed([keras.Input((4,)), layers.Dense(1)])
    compiled(model, None, run_eagerly=True)
    for epoch in range(3):
        model.weight = epoch / 4
        model.fit(data(4), data(1), batch_size=8, verbose=0)


rate = 0.5


def pulled(rate: float) -> Any:
    def loss(y: Any, predicted: Any) -> Any:
        return ops.mean((predicted - rate * y) ** 2, axis=-1)

    return loss


@right
def a_number_of_a_function_around() -> None:
    """It has the name of a global one, which changes."""
    global rate
    model = compiled(dense(8, 1, inputs=4), pulled(0.1))
    for _ in range(3):
        rate *= 0.9
        model.fit(data(4), data(1), batch_size=8, verbose=0)


def trained(model: Any, optimizer: Any) -> None:
    x = tf.constant(data(4))
    for _ in range(6):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        variables = model.trainable_variables
        optimizer().apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


@named_by("optimizer-made-anew")
def an_optimizer_of_each_step(wrong: bool) -> None:
    once = keras.optimizers.Adam(0.01)
    trained(dense(8, 1, inputs=4), lambda: keras.optimizers.Adam(0.01) if wrong else once)


@right
def an_optimizer_that_keeps_nothing() -> None:
    trained(dense(8, 1, inputs=4), lambda: keras.optimizers.SGD(0.01))


class Net(keras.Model):
    def __init__(self, *, makes_layers: bool) -> None:
        super().__init__()
        self.makes_layers, self.first, self.last = makes_layers, layers.Dense(8, "relu"), layers.Dense(1)

    def call(self, x: Any) -> Any:
        if self.makes_layers:
            return self.last(layers.Dense(8, "relu")(x))
        return self.last(self.first(x))


@named_by("parameter-not-in-optimizer")
def layers_that_are_made_in_call(wrong: bool) -> None:
    once = keras.optimizers.SGD(0.01)
    trained(Net(makes_layers=wrong), lambda: once)


@right
def frozen_copies_of_each_model() -> None:
    """A tape also watches the copy, as in Q-learning: it is new for each model, not in each step."""
    for _ in range(4):
        model, copy = Net(makes_layers=False), Net(makes_layers=False)
        optimizer = keras.optimizers.SGD(0.01)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(data(4)) - tf.stop_gradient(copy(data(4)))) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
