"""One training program for both of TensorFlow's fronts: a Session that runs a graph, and a tf.function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import amanda
import numpy as np
import tensorflow as tf

Arrays = Mapping[str, Any]
Forward = Callable[[Arrays, Any], Any]
"""The output, from the weights by name and the input."""

LEARNING_RATE, MOMENTUM = 0.05, 0.9


class Trained(NamedTuple):
    losses: list[float]
    weights: list[Any]
    gradients: list[list[Any]]  # of each step, by the weights and by the input


def train_session(
    forward: Forward, weights: Arrays, batches: Sequence[Any], tool: amanda.Tool | None = None, *, resource: bool = True
) -> Trained:
    """SGD with momentum."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {
            name: v1.get_variable(name, initializer=value, use_resource=resource) for name, value in weights.items()
        }
        x = v1.placeholder(tf.float32, batches[0].shape)
        loss = tf.reduce_mean(tf.square(forward(variables, x)))
        gradients = tf.gradients(loss, [*variables.values(), x])
        optimizer = v1.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM)
        with tf.control_dependencies([loss, *gradients]):  # reference variables are read where they are used
            step = optimizer.apply_gradients(zip(gradients, variables.values(), strict=False))
        session.run(v1.global_variables_initializer())
        losses, found = [], []
        with scope_of(tool):
            for batch in batches:
                now, gradient, _ = session.run([loss, gradients, step], {x: batch})
                losses.append(float(now))
                found.append(gradient)
        return Trained(losses, session.run(list(variables.values())), found)


def train_function(
    forward: Forward, weights: Arrays, batches: Sequence[Any], tool: amanda.Tool | None = None, *, tape: str = "inside"
) -> Trained:
    """The same. The tape is inside the function or outside."""
    variables = {name: tf.Variable(value, name=name) for name, value in weights.items()}
    velocities = [tf.Variable(tf.zeros_like(variable)) for variable in variables.values()]

    def gradients_of(loss_of: Callable[[Any], Any], x: Any) -> Any:
        with tf.GradientTape() as recorded:
            recorded.watch(x)
            loss = loss_of(x)
        return loss, recorded.gradient(loss, [*variables.values(), x])

    def loss_of(x: Any) -> Any:
        return tf.reduce_mean(tf.square(forward(variables, x)))

    whole = tf.function(lambda x: gradients_of(loss_of, x), autograph=False)
    inner = tf.function(loss_of, autograph=False)
    losses, found = [], []
    with scope_of(tool):
        for batch in batches:
            x = tf.constant(batch)
            loss, gradients = whole(x) if tape == "inside" else gradients_of(inner, x)
            losses.append(float(loss))
            found.append([gradient.numpy() for gradient in gradients])
            for variable, velocity, gradient in zip(variables.values(), velocities, gradients, strict=False):
                velocity.assign(MOMENTUM * velocity + gradient)
                variable.assign_sub(LEARNING_RATE * velocity)
    return Trained(losses, [variable.numpy() for variable in variables.values()], found)


def scope_of(tool: amanda.Tool | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if tool is None else amanda.apply(tool)


FRONTS: dict[str, Callable[..., Trained]] = {
    "Session": train_session,
    "Session, reference variables": lambda *args: train_session(*args, resource=False),
    "function": train_function,
    "function, tape outside": lambda *args: train_function(*args, tape="outside"),
}


def same(found: Trained, expected: Trained, **tolerance: float) -> None:
    assert np.isfinite(expected.losses).all()
    np.testing.assert_allclose(found.losses, expected.losses, **{"rtol": 1e-6} | tolerance)
    close = {"rtol": 1e-5, "atol": 1e-6} | tolerance
    for one, other in zip(found.gradients, expected.gradients, strict=True):
        for gradient, right in zip(one, other, strict=True):
            np.testing.assert_allclose(gradient, right, **close)
    for weight, right in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_allclose(weight, right, **close)
