"""NaNSentinel beside TensorFlow's own tf.debugging.enable_check_numerics: planted faults, of the kinds of GRIST."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

import amanda
import keras
import numpy as np
import pytest
import tensorflow as tf
from amanda.tools.nonfinite import NaNSentinel, NonfiniteError

v1 = tf.compat.v1
X = np.float32([[1.0, 2.0, -3.0], [0.5, 0.25, -1.0]])


def log_of_zero(x):
    probabilities = tf.nn.softmax(x * 1000.0)
    logs = tf.math.log(probabilities)
    return -tf.reduce_sum(probabilities * logs)


def zero_by_zero(x):
    count = tf.reduce_sum(tf.cast(x > 100.0, x.dtype))
    return tf.reduce_sum(x) * 0.0 / count


def root_at_zero(x):
    squares = tf.square(x - x)
    return tf.reduce_sum(tf.sqrt(squares))


def overflow(x):
    powers = tf.exp(x * 100.0)
    return tf.reduce_mean(powers / tf.reduce_sum(powers))


def half_overflow(x):
    powers = tf.exp(tf.cast(x * 10.0, tf.float16))
    return tf.cast(tf.reduce_mean(powers / tf.reduce_sum(powers)), x.dtype)


def mask(x):
    hidden = tf.where(x > 0.0, np.float32(0.0), np.float32(np.inf))
    return tf.reduce_sum(x * 0.0 * hidden)


def masked_row(x):
    keep = tf.constant([[True, False, True], [False, False, False]])
    scores = tf.where(keep, x, np.float32(-np.inf))
    return tf.reduce_sum(tf.nn.softmax(scores))


def zero_spread(x):
    x = x * 0.0 + 3.0
    scale = 1.0 / tf.math.reduce_variance(x)
    return tf.reduce_sum((x - tf.reduce_mean(x)) * scale)


def sum_of_gradients(x):
    squares = tf.square(x - x)
    return tf.reduce_sum(tf.sqrt(squares) + squares)


def product_overflow(x):
    large = x * 1e20
    powers = tf.matmul(large, large, transpose_b=True)
    return tf.reduce_sum(powers - powers)


def nan_in_data(x):
    return tf.reduce_sum(tf.nn.relu(x * np.float32([1.0, np.nan, 1.0])))


def crossentropy(x):
    scores = tf.exp(x * -60.0)
    probabilities = scores / tf.reduce_sum(scores, -1, keepdims=True)
    return -tf.reduce_mean(tf.one_hot([1, 0], 3) * tf.math.log(probabilities))


class Fault(NamedTuple):
    """What NaNSentinel is to say, and the operators one of which check_numerics names. Lines count from the `def`."""

    loss: object
    operator: str
    line: int
    text: str  # what it says of the reason
    others: set[str]
    kind: str = "produced"


FAULTS = [
    Fault(
        log_of_zero,
        "Mul",
        3,
        r"it began in tensorflow::Log .*:{2}\), forward: input x is zero",
        {"Log", "Reciprocal"},
    ),
    Fault(zero_by_zero, "RealDiv", 2, "cause: input y is zero", {"RealDiv"}),
    Fault(
        root_at_zero,
        "Square",
        1,
        r"it began in SqrtGrad of tensorflow::Sqrt .*:{2}\), backward: forward output 0 is zero",
        {"SqrtGrad"},
    ),
    Fault(
        overflow, "RealDiv", 2, r"tensorflow::Exp .*:{1}\).*as large as 7.226e\+86; float32 ends at 3.403e\+38", {"Exp"}
    ),
    Fault(half_overflow, "RealDiv", 2, r"tensorflow::Exp .*:{1}\).*as large as 4.852e\+08; float16 ends at", {"Exp"}),
    Fault(
        mask,
        "Mul",
        2,
        r"it began in an? .* given to tensorflow::SelectV2 .*:{1}\), forward",
        {"SelectV2", "Const"},
    ),
    Fault(masked_row, "Softmax", 3, r"; row 1 is wholly masked, by an?", {"SelectV2", "Const"}),
    Fault(zero_spread, "Mul", 3, r"it began in tensorflow::RealDiv .*:{2}\), forward: input y is zero", {"RealDiv"}),
    Fault(
        sum_of_gradients,
        "Square",
        1,
        r"it began in SqrtGrad of tensorflow::Sqrt .*:{2}\), backward(.|\n)*a sum of gradients: NaN at all 6",
        {"SqrtGrad"},
    ),
    Fault(
        product_overflow, "Sub", 3, r"it began in tensorflow::MatMul .*:{2}\).*float32 ends at 3.403e\+38", {"MatMul"}
    ),
    Fault(nan_in_data, "Mul", 1, r"the first NaN was in an? ", {"Mul", "Const"}, "given"),
    Fault(crossentropy, "RealDiv", 2, r"tensorflow::Exp .*:{1}\).*float32 ends at 3.403e\+38", {"Exp"}),
]


class Faulty(keras.layers.Layer):
    def __init__(self, loss):
        super().__init__(name="faulty")
        self.loss = loss

    def build(self, shape):
        self.scale = self.add_weight(shape=(1,), initializer="ones")

    def call(self, x):
        self.add_loss(self.loss(x * self.scale))
        return x


def step(loss, scale):
    with tf.GradientTape() as tape:
        result = loss(tf.constant(X) * scale)
    return tape.gradient(result, scale), result


def eager(loss):
    step(loss, tf.Variable(1.0))


def function(loss):
    tf.function(step)(loss, tf.Variable(1.0))


def fit(loss):
    model = keras.Sequential([keras.Input((3,)), Faulty(loss)])
    model.compile("sgd", jit_compile=False)
    model.fit(X, X, batch_size=2, verbose=0)


def session(loss):
    with tf.Graph().as_default(), v1.Session() as session:
        scale = v1.get_variable("scale", initializer=np.float32(1.0))
        result = loss(tf.constant(X) * scale)
        gradient = tf.gradients(result, scale)
        session.run(scale.initializer)
        session.run([gradient, result])


@pytest.mark.parametrize("run", [eager, function, fit, session], ids=lambda run: run.__name__)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.loss.__name__)
def test_a_planted_fault(fault, run):
    first = inspect.getsourcelines(fault.loss)[1]
    with pytest.raises(NonfiniteError) as caught, amanda.apply(NaNSentinel()):
        run(fault.loss)
    found, text = caught.value.finding, str(caught.value)
    assert (found.name, found.kind) == (f"tensorflow::{fault.operator}", fault.kind)
    assert found.source == f"{__file__}:{first + fault.line}"
    assert found.phase == ("backward" if fault.loss in (root_at_zero, sum_of_gradients) else "forward")
    reason = re.sub(r"\{(\d)\}", lambda line: str(first + int(line[1])), fault.text)
    assert re.search(reason, text), text
    if run is fit:
        assert found.module_path.endswith(".faulty")

    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(tf.errors.InvalidArgumentError) as other:
            run(fault.loss)
    finally:
        tf.debugging.disable_check_numerics()
    assert re.search(r"""op "(?:b')?(\w+)""", str(other.value))[1] in fault.others
