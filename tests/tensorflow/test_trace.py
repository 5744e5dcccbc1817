"""Expressions over TensorFlow's operands."""

from __future__ import annotations

import amanda
import numpy as np
import pytest
import tensorflow as tf

v1 = tf.compat.v1
X = tf.constant([1.0, 2.0])
total = tf.Variable([0.0, 0.0])


def step(x):
    total.assign(x)  # has no results
    tf.debugging.Assert(tf.reduce_all(x > 0.0), ["positive"])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.sqrt(x) * 3.0)
    return tape.gradient(y, x)


def in_session(x):
    with tf.Graph().as_default() as graph:
        w = v1.get_variable("w", initializer=np.zeros(2, np.float32))
        ready, x = v1.global_variables_initializer(), tf.constant(x.numpy())
        gradient = tf.gradients(tf.reduce_sum(tf.sqrt(x) * 3.0), x)
        written = v1.assign(w, x)
    with v1.Session(graph=graph) as session:
        session.run(ready)
        session.run([gradient, written])


REGIMES = {"function": tf.function(step), "eager": step, "session": in_session}
regimes = pytest.mark.parametrize("run", [pytest.param(run, id=name) for name, run in REGIMES.items()])


@regimes
@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("*: output.max()", 2**0.5),
        ("*: outputs[0].max()", 2**0.5),
        ("*: x.max()", 2.0),
        ("*: x.max() + output.max()", 2.0 + 2**0.5),
        ("Sq*: inputs[0].min()", 1.0),
        ("*: grad_output.max()", 3.0),
        ("*: grad_input.max()", 1.5),
        ("*: grad_output.max() + grad_input.max()", 4.5),
    ],
)
def test_operators_that_lack_an_operand_are_left_out(run, expression, value):
    with amanda.trace(expression) as trace:
        run(X)
    rows = [row for row in trace.rows() if row.name == "tensorflow::Sqrt"]
    assert [row.max for row in rows] == [pytest.approx(value)]
    assert "no position" not in str(trace.table())


def test_an_operator_without_results_that_is_named_is_an_error():
    with (
        pytest.raises(ValueError, match="AssignVariableOp has no 'output'; it has resource, value, inputs\n"),
        amanda.trace("AssignVariableOp: output.max()"),
    ):
        step(X)
