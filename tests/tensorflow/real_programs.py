"""What the real programs share: how one is run again and again from the same state, and the data they train on."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

_OFF = "disable_meta_optimizer"

Arrays = dict[str, np.ndarray]


@dataclass
class Program:
    """A program that is built once, and run many times."""

    run: Callable[[], Arrays]
    """Trains from the initial state. Returns losses, outputs, and what was trained."""
    traces: list[str] = field(default_factory=list)
    """One entry for each time that TensorFlow traced the program's Python."""
    graph: tf.Graph | None = None
    """Of a v1 program."""


@contextlib.contextmanager
def without_optimizer() -> Iterator[None]:
    """Graphs run as they are. TensorFlow's optimizer replaces arithmetic by other arithmetic, equal but for rounding, where
    no other node takes a value that lies between."""
    tf.config.optimizer.set_experimental_options({_OFF: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({_OFF: False})


def session_config() -> Any:
    """What sessions need to optimize graphs as functions do."""
    config = tf.compat.v1.ConfigProto()
    is_off = tf.config.optimizer.get_experimental_options().get(_OFF, False)
    config.graph_options.rewrite_options.disable_meta_optimizer = is_off
    return config


@functools.cache
def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Real images of handwritten digits, 8 x 8 pixels between 0 and 1, and what they show."""
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    return (images[:count].reshape(-1, 8, 8, 1) / 16).astype(np.float32), labels[:count].astype(np.int32)


def numbered(variables: Iterable[Any]) -> Arrays:
    """By number: Keras counts its layers through the process."""
    return {f"variable {i}": np.asarray(variable) for i, variable in enumerate(variables)}


def restored(variables: list[Any], run: Callable[[], Arrays]) -> Callable[[], Arrays]:
    """`run`, from the values that the variables have now; it returns the variables, too."""
    initial = [np.asarray(variable) for variable in variables]

    def from_the_start() -> Arrays:
        for variable, value in zip(variables, initial, strict=True):
            variable.assign(value)
        return run() | numbered(variables)

    return from_the_start


def fitted(
    model: Any, x: Any, y: np.ndarray, *, optimizer: Any = None, loss: Any = None, batch: int = 8, **compiled: Any
) -> Program:
    """A Keras model, 2 or 3, that `fit` trains for three steps."""
    traces: list[str] = []
    step = model.train_step

    def train_step(data: Any) -> Any:
        traces.append("train_step")
        return step(data)

    model.train_step = train_step
    optimizer = optimizer or keras.optimizers.Adam(0.01)
    model.compile(optimizer, loss or "sparse_categorical_crossentropy", jit_compile=False, **compiled)
    optimizer.build(model.trainable_variables)
    count = 3 * batch

    def run() -> Arrays:
        history = model.fit(x[:count], y[:count], batch_size=batch, shuffle=False, verbose=0)
        return {
            "loss": np.array(history.history["loss"]),
            "evaluated": np.array(model.evaluate(x[:batch], y[:batch], batch_size=batch, verbose=0)),
            "predicted": model.predict(x[:batch], batch_size=batch, verbose=0),
        }

    variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return Program(restored([*model.variables, *variables], run), traces)


def trained(
    variables: list[Any], step: Callable[..., Any], batches: list[tuple[Any, ...]], traces: list[str] | None = None
) -> Program:
    """Calls `step` with each batch; it trains the variables, and returns a structure of tensors."""

    def run() -> Arrays:
        results = [tf.nest.flatten(step(*batch), expand_composites=True) for batch in batches]
        return {f"{i}.{j}": np.asarray(value) for i, result in enumerate(results) for j, value in enumerate(result)}

    return Program(restored(variables, run), [] if traces is None else traces)


def in_session(graph: tf.Graph, fetches: Any, feeds: list[dict[Any, Any]]) -> Program:
    """Runs the fetches with each of the feeds in a new v1 session. What random operators give starts again with it."""
    with graph.as_default():
        variables = tf.compat.v1.global_variables()
        ready = tf.compat.v1.global_variables_initializer()

    def run() -> Arrays:
        with tf.compat.v1.Session(graph=graph, config=session_config()) as session:
            session.run(ready)
            got = [tf.nest.flatten(session.run(fetches, feed)) for feed in feeds]
            left = session.run({v.name: v for v in variables}) if variables else {}
        flat = {f"{i}.{j}": value for i, values in enumerate(got) for j, value in enumerate(values)}
        return {name: np.asarray(value) for name, value in (flat | left).items() if value is not None}

    return Program(run, graph=graph)
