"""Programs around tf.function: tapes, loops, datasets, saved models."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from real_programs import Program, digits, trained

X, Y = digits(24)
BATCHES = [(tf.constant(X[i : i + 8].reshape(8, 64)), tf.constant(Y[i : i + 8])) for i in (0, 8, 16)]


def weights(*shape: int) -> tf.Variable:
    return tf.Variable(tf.random.stateless_normal(shape, [len(shape), shape[-1]]) * 0.2)


def loss_of(logits: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def descending(variables: list[tf.Variable], logits: Callable[[tf.Tensor], tf.Tensor], *, tape: str) -> Program:
    """Gradient descent with the tape `inside` or `outside` the tf.function."""
    traces: list[str] = []

    def forward(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        traces.append("forward")
        return loss_of(logits(x), y)

    def step(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as recorded:
            loss = called(x, y)
        gradients = recorded.gradient(loss, variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return [loss, *map(tf.convert_to_tensor, gradients)]

    called = forward if tape == "inside" else tf.function(forward)
    return trained(variables, tf.function(step) if tape == "inside" else step, BATCHES, traces)


def perceptron(*, tape: str) -> Program:
    hidden, bias, out = weights(64, 16), weights(16), weights(16, 10)
    return descending([hidden, bias, out], lambda x: tf.nn.relu(x @ hidden + bias) @ out, tape=tape)


def tape_inside() -> Program:
    return perceptron(tape="inside")


def tape_outside() -> Program:
    return perceptron(tape="outside")


def loop(*, tape: str) -> Program:
    w, out = weights(8, 8), weights(8, 10)

    def logits(x: tf.Tensor) -> tf.Tensor:
        rows, state = tf.reshape(x, (8, 8, 8)), tf.zeros((8, 8))
        for i in tf.range(8):  # AutoGraph makes it a While
            state = tf.tanh(state @ w + rows[:, i])
        return state @ out

    convert = tf.autograph.to_graph(logits)
    return descending([w, out], convert, tape=tape)


def loop_inside() -> Program:
    return loop(tape="inside")


def loop_outside() -> Program:
    return loop(tape="outside")


def branches() -> Program:
    w, out = weights(64, 16), weights(16, 10)

    def logits(x: tf.Tensor) -> tf.Tensor:
        y = x @ w
        y = tf.cond(tf.reduce_mean(x) > 0.3, lambda: tf.nn.elu(y), lambda: tf.sin(y))
        kind = tf.cast(tf.reduce_sum(x), tf.int32) % 3
        return tf.switch_case(kind, [lambda: y, lambda: tf.exp(-y), lambda: y * tf.sigmoid(y)]) @ out

    return descending([w, out], logits, tape="inside")


def own_gradients() -> Program:
    """custom_gradient, recompute_grad and stop_gradient."""
    w, out = weights(64, 16), weights(16, 10)

    @tf.custom_gradient
    def rounded(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tf.round(x * 8.0) / 8.0, lambda upstream: upstream

    recomputed = tf.recompute_grad(lambda x: tf.tanh(tf.square(x)))
    return descending([w, out], lambda x: (recomputed(rounded(x @ w)) + tf.stop_gradient(x @ w)) @ out, tape="inside")


def functions_in_functions() -> Program:
    w, out = weights(64, 16), weights(16, 10)

    @tf.function(reduce_retracing=True)
    def hidden(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softplus(x @ w)

    @tf.function(input_signature=[tf.TensorSpec((None, 16))])
    def last(x: tf.Tensor) -> tf.Tensor:
        return x @ out

    return descending([w, out], lambda x: last(hidden(x)), tape="inside")


def gathered() -> Program:
    """Gradients that are IndexedSlices; sparse and ragged tensors, and strings, beside them."""
    table, out = weights(17, 6), weights(6, 10)

    def logits(x: tf.Tensor) -> tf.Tensor:
        words = tf.cast(x * 16, tf.int32)
        sparse = tf.sparse.from_dense(x)
        ragged = tf.RaggedTensor.from_tensor(x, padding=0.0)
        counted = tf.cast(tf.strings.length(tf.strings.as_string(words[:, :1])), tf.float32)
        y = tf.reduce_mean(tf.gather(table, words), 1) + counted
        return (y + tf.sparse.reduce_sum(sparse, 1, keepdims=True) + tf.reduce_sum(ragged, 1, keepdims=True)) @ out

    return descending([table, out], logits, tape="inside")


def epoch_in_a_function() -> Program:
    """A whole epoch is one call: the loop over the dataset is in the graph. (Without `iter`, the dataset runs it.)"""
    w = weights(64, 10)
    data = tf.data.Dataset.from_tensor_slices((X.reshape(-1, 64), Y)).shuffle(
        24, seed=1, reshuffle_each_iteration=False
    )
    data = data.map(lambda x, y: (x - 0.5, y)).batch(8).prefetch(1)
    traces: list[str] = []

    @tf.function
    def epoch(data: tf.data.Dataset) -> tf.Tensor:
        traces.append("epoch")
        total = 0.0
        for x, y in iter(data):
            with tf.GradientTape() as tape:
                loss = loss_of(x @ w, y)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            total += loss
        return total

    return trained([w], epoch, [(data,)] * 2, traces)


def derivatives() -> Program:
    """Jacobians, by vectorized loops; second derivatives; forward mode."""
    w = weights(8, 4)
    traces: list[str] = []

    @tf.function
    def all_of_them(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        traces.append("derivatives")
        x = x[:2, :8]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            value = tf.tanh(x @ w)
            (slope,) = tf.gradients(tf.reduce_sum(value**2), [x])
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            pushed = tf.sin(x @ w)
        return [tape.batch_jacobian(value, x), tape.jacobian(value, w), tape.gradient(slope, x), forward.jvp(pushed)]

    return trained([w], all_of_them, BATCHES, traces)


def mapped() -> Program:
    """map_fn, scan and vectorized_map."""
    w, out = weights(8, 8), weights(8, 10)

    def logits(x: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(x, (8, 8, 8))
        y = tf.scan(lambda state, row: tf.tanh(state @ w + row), tf.transpose(rows, [1, 0, 2]), tf.zeros((8, 8)))[-1]
        y += tf.map_fn(lambda row: tf.reduce_sum(row @ w, 0), rows)
        return (y + tf.vectorized_map(lambda row: tf.reduce_max(row @ w, 0), rows)) @ out

    return descending([w, out], logits, tape="inside")


def python_operators() -> Program:
    w = weights(64, 10)

    def logits(x: tf.Tensor) -> tf.Tensor:
        y = tf.py_function(lambda value: value * 2.0, [x @ w], tf.float32)
        return tf.ensure_shape(y, (8, 10)) + tf.numpy_function(np.sin, [tf.reduce_sum(x)], tf.float32)

    return descending([w], logits, tape="inside")


def random_numbers() -> Program:
    """Of a generator, whose state is a variable, and stateless."""
    w, generator = weights(64, 10), tf.random.Generator.from_seed(7)
    traces: list[str] = []

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        traces.append("step")
        noise = generator.normal((8, 64)) + tf.random.stateless_uniform((8, 64), [1, 2])
        with tf.GradientTape() as tape:
            loss = loss_of(tf.nn.experimental.stateless_dropout(x + noise, 0.2, [3, 4]) @ w, y)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return trained([w, generator.state], step, BATCHES, traces)


class Saved(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.steps = weights(64, 10), tf.Variable(0)

    @tf.function(input_signature=[tf.TensorSpec((None, 64))])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        self.steps.assign_add(1)
        return tf.nn.softmax(x @ self.w)


def loaded() -> Program:
    """A SavedModel that was written and read again; its functions have no Python."""
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(Saved(), folder)
        model = tf.saved_model.load(folder)

    def step(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, model(x)))
        gradient = tape.gradient(loss, model.w)
        model.w.assign_sub(gradient)
        return [loss, gradient]

    return trained([model.w, model.steps], step, BATCHES)


PROGRAMS = [tape_inside, tape_outside, loop_inside, loop_outside, branches, own_gradients, functions_in_functions]
PROGRAMS += [gathered, epoch_in_a_function, derivatives, mapped, python_operators, random_numbers, loaded]
