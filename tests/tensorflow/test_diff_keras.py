"""CausalDiff of two programs of Keras: one change of each kind, in each way to run a model, and what is said of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import amanda
import keras
import numpy as np
import pytest
import tensorflow as tf
from amanda.tools.diff import CausalDiff, Recorder

X = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
IMAGES = np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype(np.float32)


def fit(model, rate=0.1, optimizer=keras.optimizers.SGD):
    model.compile(optimizer(rate), "mse", jit_compile=False)
    model.fit(X, X.sum(1), batch_size=16, shuffle=False, verbose=0)


def functional(activation="relu", **options):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation=activation)(keras.layers.Dense(8, activation="relu")(inputs))
    fit(keras.Model(inputs, keras.layers.Dense(1)(hidden)), **options)


class Block(keras.layers.Layer):
    def __init__(self, factor):
        super().__init__()
        self.dense, self.factor = keras.layers.Dense(8), factor

    def call(self, x):
        return tf.nn.relu(self.dense(x)) * self.factor


class Net(keras.Model):
    def __init__(self, factor):
        super().__init__()
        self.blocks, self.head = [Block(2.0), Block(factor)], keras.layers.Dense(1)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def subclassed(factor=2.0):
    fit(Net(factor))


def dropout(share=0.1):
    fit(
        keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dropout(share), keras.layers.Dense(1)])
    )


def predict(epsilon=1e-3):
    layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(epsilon=epsilon), keras.layers.Flatten()]
    keras.Sequential([keras.Input((8, 8, 1)), *layers]).predict(IMAGES, verbose=0)


def loop(wrap, activation="relu", rate=0.1, target=1.0):
    model = keras.Sequential([keras.layers.Dense(8, activation=activation), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(rate)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - target))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step = wrap(step)
    for _ in range(3):
        step(X)


def eager_loop(**changed):
    loop(lambda step: step, **changed)


def function_loop(**changed):
    loop(tf.function, **changed)


class Kind(NamedTuple):
    program: Any
    changed: dict[str, Any]
    causes: list[str]  # the operators, those that only one run has with their run
    answer: str  # the beginning of its first line


LONE = "this run computes something else from tensorflow::{} in {} at "
CHANGED = "the only change: {} in tensorflow::{} at {} (1 operator), which moves results by up to "
KINDS = [
    Kind(
        functional,
        {"activation": "tanh"},
        ["Tanh only in this run", "Relu only in reference"],
        LONE.format("Tanh", "functional.dense"),
    ),
    Kind(subclassed, {"factor": 3.0}, ["Mul"], CHANGED.format("y: 2.0 -> 3.0", "Mul", "net.block_1")),
    Kind(
        dropout,
        {"share": 0.5},
        ["GreaterEqual", "Mul"],
        "the largest of 2 changes: y: 1.1111112 -> 2.0 in tensorflow::Mul at sequential.dropout",
    ),
    Kind(
        predict,
        {"epsilon": 1e-5},
        ["AddV2"],
        CHANGED.format("y: 0.001 -> 1e-05", "AddV2", "sequential.batch_normalization.batchnorm"),
    ),
    *(
        Kind(program, changed, causes, answer)
        for program in (eager_loop, function_loop)
        for changed, causes, answer in (
            (
                {"activation": "tanh"},
                ["Tanh only in this run", "Relu only in reference"],
                LONE.format("Tanh", "sequential.dense"),
            ),
            ({"target": 1.5}, ["Sub"], "the only change: y: 1.0 -> 1.5 in tensorflow::Sub"),
        )
    ),
]


def run(program, tool, changed):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    with amanda.apply(tool):
        program(**changed)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.program.__name__}-{next(iter(kind.changed))}")
def test_one_change_is_named_and_nothing_else(kind, tmp_path):
    with Recorder(tmp_path / "r") as recorder:
        run(kind.program, recorder, {})
    diff = CausalDiff(tmp_path / "r", progress=False)
    run(kind.program, diff, kind.changed)
    found = [
        row.name.removeprefix("tensorflow::") + f" {row.kind}" * row.kind.startswith("only") for row in diff.rows()
    ]
    assert sorted(found) == sorted(kind.causes)
    first, *rest = diff.answer().splitlines()
    assert first.startswith(kind.answer)
    if "activation" in kind.changed:
        leads, lone, *rest = rest
        assert leads.startswith("that leads to tensorflow::MatMul in ")
        assert lone.startswith("only one of the runs has, or runs so often, 2 operators: first tensorflow::Tanh at ")
    replaces = (
        "the second run went on with the reference's results: what it has printed, such as its loss, follows these"
    )
    assert rest == ([] if kind.program is eager_loop else [replaces])


@pytest.mark.parametrize("program", [functional, eager_loop])
def test_the_same_program_differs_in_nothing(program, tmp_path):
    with Recorder(tmp_path / "r") as recorder:
        run(program, recorder, {})
    diff = CausalDiff(tmp_path / "r", progress=False)
    run(program, diff, {})
    assert diff.rows() == []
    assert diff.answer() == ""


def test_a_rate_is_named_in_an_eager_loop(tmp_path):
    """The variables that it moves, and all that is computed of them, follow from it."""
    with Recorder(tmp_path / "r") as recorder:
        run(eager_loop, recorder, {})
    diff = CausalDiff(tmp_path / "r", progress=False)
    run(eager_loop, diff, {"rate": 0.25})
    causes = [(row.kind, row.name, row.note) for row in diff.rows()]
    assert causes == [
        ("operator", "tensorflow::AssignVariableOp", "value: 0.1 -> 0.25"),
        ("operator", "tensorflow::Mul", "y: 0.1 -> 0.25"),
    ]
