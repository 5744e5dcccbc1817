"""Flops on TensorFlow: closed forms, TensorFlow's own profiler, and PyTorch's counts of the same network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import amanda
import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from amanda.tools.flops import Flops

v1 = tf.compat.v1

# Program, shapes of its two operands, and products in a forward run: a multiplication and an addition are 2 operations.
CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], int]] = {
    "matmul": (tf.matmul, (3, 4), (4, 5), 3 * 4 * 5),
    "transposed": (lambda a, b: tf.matmul(a, b, True, True), (4, 3), (5, 4), 3 * 4 * 5),
    "batches": (tf.matmul, (2, 3, 4), (2, 4, 5), 2 * 3 * 4 * 5),
    "broadcast": (tf.matmul, (2, 3, 4), (4, 5), 2 * 3 * 4 * 5),
    "attention": (lambda a, b: tf.einsum("aecd,abcd->acbe", a, b), (2, 3, 4, 5), (2, 6, 4, 5), 2 * 4 * 3 * 6 * 5),
    "summed over first": (lambda a, b: tf.einsum("ijs,jk->ik", a, b), (3, 4, 9), (4, 5), 3 * 4 * 5),
    "conv1d": (lambda x, w: tf.nn.conv1d(x, w, 1, "VALID"), (2, 9, 4), (3, 4, 5), 2 * 7 * 5 * 3 * 4),
    "conv2d": (lambda x, w: tf.nn.conv2d(x, w, 2, "SAME"), (2, 8, 6, 4), (5, 3, 4, 10), 2 * 4 * 3 * 10 * 5 * 3 * 4),
    "conv3d": (
        lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "VALID"),
        (1, 4, 5, 6, 2),
        (2, 2, 3, 2, 7),
        3 * 4 * 4 * 7 * 2 * 2 * 3 * 2,
    ),
    "depthwise": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 2, 2, 1], "SAME"),
        (2, 8, 6, 4),
        (5, 3, 4, 3),
        2 * 4 * 3 * 12 * 5 * 3,
    ),
    "transposed conv2d": (
        lambda x, w: tf.nn.conv2d_transpose(x, w, [2, 8, 6, 4], 2, "SAME"),
        (2, 4, 3, 10),
        (5, 3, 4, 10),
        2 * 4 * 3 * 10 * 5 * 3 * 4,
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.standard_normal(shape).astype(np.float32) for shape in shapes]


def products_left(flops: Flops) -> list[str]:
    """Products and convolutions that were not counted."""
    return [name for name in flops.uncounted if any(part in name for part in ("MatMul", "Einsum", "Conv"))]


@each_case
@pytest.mark.parametrize("batch", ["known", "unknown"])
def test_a_gradient_takes_as_many_operations_as_the_operator_in_a_function(case: Any, batch: str) -> None:
    program, a, b, products = case
    unknown = [None if batch == "unknown" else a[0], *a[1:]]

    @tf.function(input_signature=[tf.TensorSpec(unknown), tf.TensorSpec(b)])
    def step(x: tf.Tensor, w: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((x, w))
            y = program(x, w)
            loss = tf.reduce_sum(y * y)
        return tape.gradient(loss, (x, w))

    flops = Flops()
    with amanda.apply(flops):
        step(*arrays(a, b))
    assert flops.total == 3 * 2 * products
    assert sum(row.flops for row in flops.rows() if not row.backward) == 2 * products
    assert not products_left(flops)


@each_case
def test_the_same_in_a_session(case: Any) -> None:
    program, a, b, products = case
    with tf.Graph().as_default():
        x, w = v1.placeholder(tf.float32, (None, *a[1:])), v1.placeholder(tf.float32, b)
        y = program(x, w)
        gradients = tf.gradients(y * y, [x, w])
        flops = Flops(uncounted=False)
        with v1.Session() as session, amanda.apply(flops):
            session.run(gradients, dict(zip((x, w), arrays(a, b), strict=True)))
    assert flops.total == 3 * 2 * products


@each_case
def test_the_same_eagerly(case: Any) -> None:
    program, a, b, products = case
    flops = Flops()
    with amanda.apply(flops):
        program(*map(tf.constant, arrays(a, b)))
    assert flops.total == 2 * products


def test_sizes_that_change_from_run_to_run_are_those_of_the_run() -> None:
    """As attention in a decoder, to a context that grows."""

    @tf.function(input_signature=[tf.TensorSpec([1, None]), tf.TensorSpec([None, 5])])
    def step(p: tf.Tensor, v: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((p, v))
            loss = tf.reduce_sum(tf.square(p @ v))
        return tape.gradient(loss, (p, v))

    flops = Flops()
    with amanda.apply(flops):
        for length in (3, 4, 7):
            step(tf.ones((1, length)), tf.ones((length, 5)))
    assert flops.total == 3 * 2 * (3 + 4 + 7) * 5


def test_what_is_not_needed_does_not_run_and_is_not_counted() -> None:
    @tf.function
    def step(x: tf.Tensor, w: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((x, w))
            y = tf.square(x @ w)
        return tape.gradient(y, w)  # the tape also makes that of x

    flops = Flops()
    with amanda.apply(flops):
        step(*arrays((3, 4), (4, 5)))
    assert flops.total == 2 * 2 * 3 * 4 * 5


def test_operators_without_a_formula_are_listed() -> None:
    @tf.function
    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.nn.relu(tf.einsum("ij->ji", x)), [-1])

    flops = Flops()
    with amanda.apply(flops):
        run(np.ones((2, 3), np.float32))
    assert flops.total == 0
    assert flops.uncounted == {"tensorflow::Einsum": 1, "tensorflow::Relu": 1}


def test_rows_have_the_modules_of_keras() -> None:
    model = keras.Sequential([keras.layers.Dense(8, name="first"), keras.layers.Dense(2, name="second")])
    model.build((3, 4))

    @tf.function
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x)))
        return tape.gradient(loss, model.trainable_variables)

    flops = Flops()
    with amanda.apply(flops):
        step(tf.ones((3, 4)))
    first, second = 2 * 3 * 4 * 8, 2 * 3 * 8 * 2
    assert flops.total == 2 * first + 3 * second  # the input needs no gradient
    by_layer = {path.rpartition(".")[2].partition("_")[0]: count for path, count in flops.by_module().items()}
    assert (by_layer["first"], by_layer["second"]) == (2 * first, 3 * second)


def test_as_tensorflows_profiler_counts() -> None:
    """It counts what a graph's shapes tell, at most four dimensions."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, (2, 8, 6, 4))
        image, depthwise, dense = map(tf.constant, arrays((5, 3, 4, 10), (3, 3, 10, 2), (80, 7)))
        h = tf.nn.conv2d(x, image, 2, "SAME")
        h = tf.nn.depthwise_conv2d(h, depthwise, [1, 2, 2, 1], "SAME")
        y = tf.matmul(tf.reshape(h, (2, -1)), dense)
        options = v1.profiler.ProfileOptionBuilder.float_operation()
        options["output"] = "none"
        theirs = v1.profiler.profile(graph, options=options).total_float_ops
        flops = Flops()
        with v1.Session() as session, amanda.apply(flops):
            session.run(y, {x: np.ones((2, 8, 6, 4), np.float32)})
    assert flops.total == theirs > 0


# torch.utils.flop_counter.FlopCounterMode, torch 2.13, of transformers.ResNetForImageClassification(ResNetConfig(
# downsample_in_bottleneck=True, num_labels=1000)), on 2 images of 64x64: forward, and with the backward pass from a sum.
RESNET50_FORWARD, RESNET50_STEP = 1_267_269_632, 3_763_273_728


@pytest.mark.slow
@pytest.mark.parametrize("front", ["function", "session"])
def test_resnet50_has_the_counts_of_pytorchs(front: str) -> None:
    inference, training = (Flops(uncounted=False) for _ in range(2))
    images = np.random.random((2, 64, 64, 3)).astype(np.float32)
    options: dict[str, Any] = {"weights": None, "classifier_activation": None, "input_shape": (64, 64, 3)}
    if front == "function":
        model = keras.applications.ResNet50(**options)

        @tf.function
        def step(x: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(x, training=True)))
            return tape.gradient(loss, model.trainable_variables)

        with amanda.apply(inference):
            tf.function(lambda x: model(x, training=False))(images)
        with amanda.apply(training):
            step(images)
    else:
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, (2, 64, 64, 3))
            del options["input_shape"]
            model = tf_keras.applications.ResNet50(input_tensor=x, **options)
            gradients = tf.gradients(tf.square(model.output), model.trainable_weights)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                with amanda.apply(inference):
                    session.run(model.output, {x: images})
                with amanda.apply(training):
                    session.run(gradients, {x: images})
    assert inference.total == RESNET50_FORWARD
    assert training.total == RESNET50_STEP
