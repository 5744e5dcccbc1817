"""What tools say of the variables that they leave as they are. The oracle is a model's trainable_variables."""

import math
import warnings

import amanda
import keras
import numpy as np
import pytest
import tensorflow as tf
from amanda.research.error_injection import BitFlip, ErrorInjection
from amanda.tools.pruning import MagnitudePruning
from amanda.tools.quantization import FakeQuantization

WEIGHTS = {"lstm_cell/kernel", "lstm_cell/recurrent_kernel", "first/kernel", "second/kernel"}
BIASES = {"lstm_cell/bias", "first/bias", "second/bias"}
TOOLS = {
    "MagnitudePruning": (MagnitudePruning, WEIGHTS),
    "FakeQuantization": (FakeQuantization, WEIGHTS),
    "ErrorInjection, weight": (lambda: ErrorInjection(BitFlip(0), at="weight"), WEIGHTS),
    "ErrorInjection, output": (lambda: ErrorInjection(BitFlip(0)), WEIGHTS),
}


def made():
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Embedding(16, 8, name="embed"),
            layers.LSTM(8, name="rnn"),
            layers.Dense(4, name="first"),
            layers.BatchNormalization(name="norm"),
            layers.Dense(2, name="second"),
        ]
    )
    model(np.arange(12).reshape(2, 6))
    return model


def short(name):
    return "/".join(name.split("/")[-2:])


@pytest.mark.parametrize("name", TOOLS)
def test_the_share_is_that_of_trainable_variables(name):
    """Of a program that trains, with weight decay, and predicts: optimizers, and what is not trained, do not count."""
    make, handled = TOOLS[name]
    tool, model = make(), made()
    model.compile(keras.optimizers.AdamW(), "mse")
    with amanda.apply(tool):
        model.fit(np.arange(12).reshape(2, 6), np.zeros((2, 2), np.float32), epochs=2, verbose=0)
        model.predict(np.arange(12).reshape(2, 6), verbose=0)
    sizes = {short(each.path): math.prod(each.shape) for each in model.trainable_variables}
    assert {short(row.parameter) for row in tool.unhandled} == set(sizes) - handled
    assert tool.covered == (sum(sizes[each] for each in handled), sum(sizes.values()))
    kinds = {short(row.parameter): row.name for row in tool.unhandled}
    assert kinds["embed/embeddings"] in ("tensorflow::GatherV2", "tensorflow::ResourceGather")
    assert kinds["norm/gamma"] == "tensorflow::Mul"
    assert f"{tool.covered.handled:,} of {tool.covered.elements:,} elements" in str(tool.table())


class Experts(tf.Module):
    """Nothing here is a product that the tools know."""

    def __init__(self):
        super().__init__()
        self.table, self.weights = tf.Variable(tf.ones((6, 4)), name="table"), tf.Variable(tf.ones((3, 4, 5)), name="w")

    @tf.function
    def __call__(self, rows):
        x = tf.gather(self.table, rows)
        x = tf.linalg.matmul(x, x, transpose_b=True) @ x
        return tf.einsum("bd,edf->bf", x, self.weights)


def test_that_nothing_was_handled_is_told():
    tool = MagnitudePruning()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with amanda.apply(tool):
            Experts()(tf.constant([0, 1]))
    (told,) = [str(one.message) for one in caught if one.category is amanda.UnmatchedFilterWarning]
    assert told == (
        "[pruning] tool 'MagnitudePruning' handled no parameter of the operators that ran; not handled: "
        "tensorflow::Einsum ×1 (w), tensorflow::ResourceGather ×1 (table)"  # noqa: RUF001
    )
    assert {(row.parameter, row.elements) for row in tool.unhandled} == {("w", 60), ("table", 24)}


def test_in_a_session_variables_count_too():
    graph = tf.Graph()
    with graph.as_default():
        first = tf.compat.v1.get_variable("first", (4, 3), use_resource=True)
        scale = tf.compat.v1.get_variable("scale", (3,), use_resource=False)
        result = tf.matmul(tf.ones((2, 4)), first) * scale
        start = tf.compat.v1.global_variables_initializer()
    tool = MagnitudePruning()
    with tf.compat.v1.Session(graph=graph) as session, amanda.apply(tool):
        session.run(start)
        session.run(result)
    assert [(row.name, row.parameter, row.elements) for row in tool.unhandled] == [("tensorflow::Mul", "scale", 3)]
    assert tool.covered == (12, 15)
