"""Programs of TensorFlow: one network, eagerly, in a function and in a session."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before the import, which reports GPUs that it does not find

import numpy as np
import tensorflow as tf

from regime_table.program import Program, Regime

v1 = tf.compat.v1
X = np.ones((1, 4, 4, 2), np.float32)


def _weights() -> list[Any]:
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype(np.float32) for shape in ((3, 3, 2, 4), (4, 4))]


def _net(x: Any, filters: Any, weight: Any) -> Any:
    """A convolution, attention and a product."""
    x = tf.nn.relu(tf.nn.conv2d(x, filters, 1, "SAME"))
    heads = tf.reshape(x, (1, 4, 4, 4)) @ weight[None, None]
    attended = tf.nn.softmax(heads @ tf.transpose(heads, (0, 1, 3, 2))) @ heads
    return tf.reshape(attended, (16, 4)) @ weight


@contextlib.contextmanager
def _eager(network: str) -> Iterator[Program]:
    weights = [tf.Variable(each) for each in _weights()]
    yield Program(_net, lambda x: _step(tf.constant(x), weights), X, lambda result: None)


@contextlib.contextmanager
def _function(network: str, *, jit_compile: bool = False) -> Iterator[Program]:
    weights = [tf.Variable(each) for each in _weights()]
    step = tf.function(lambda x: _step(x, weights), jit_compile=jit_compile)
    yield Program(_net, lambda x: step(tf.constant(x)), X, lambda result: None)


def _step(x: Any, weights: list[Any]) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(_net(x, *weights))
    return tape.gradient(loss, weights)


@contextlib.contextmanager
def _session(network: str) -> Iterator[Program]:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, X.shape)
        weights = [v1.get_variable(f"w{i}", initializer=each, use_resource=True) for i, each in enumerate(_weights())]
        gradients = tf.gradients(tf.reduce_sum(_net(x, *weights)), weights)
        session.run(v1.global_variables_initializer())
        yield Program(_net, lambda values: session.run(gradients, {x: values}), X, lambda result: None)


REGIMES = {
    "TensorFlow, eager": Regime(_eager),
    "TensorFlow, function": Regime(_function),
    "TensorFlow, XLA": Regime(functools.partial(_function, jit_compile=True)),
    "TensorFlow, session": Regime(_session),
}
