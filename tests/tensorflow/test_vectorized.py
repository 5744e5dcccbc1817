"""Loops that TensorFlow vectorizes: tools are shown the operators that run, which it makes of those of the body."""

from __future__ import annotations

import inspect

import amanda
import numpy as np
import pytest
import tensorflow as tf
from function_tools import doubles, looks

X = tf.constant([[1.0, -2.0], [3.0, 4.0]])
body = tf.function(lambda x: tf.nn.relu(x) * 2.0)
MAPS = {
    "a function": tf.function(lambda x: tf.vectorized_map(body, x)),
    "in line": tf.function(lambda x: tf.vectorized_map(lambda row: tf.nn.relu(row) * 2.0, x)),
    "eager": lambda x: tf.vectorized_map(body, x),
    "no loop": tf.function(lambda x: tf.vectorized_map(body, x, fallback_to_while_loop=False)),
    "nested": tf.function(lambda x: tf.vectorized_map(lambda row: tf.vectorized_map(body, row), x[None])[0]),
    "in a loop": tf.function(
        lambda x: tf.while_loop(lambda i, h: i < 1, lambda i, h: (i + 1, tf.vectorized_map(body, h)), [0, x])[1]
    ),
}
every_map = pytest.mark.parametrize("mapped", [pytest.param(made, id=name) for name, made in MAPS.items()])


TAPS = {
    "before": lambda c, run: c.insert_before_op(run),
    "before, no operands": lambda c, run: c.insert_before_op(run, inputs=[]),
    "before, may edit": lambda c, run: c.insert_before_op(lambda x: run(x)),
    "after": lambda c, run: c.insert_after_op(run),
    "after, no operands": lambda c, run: c.insert_after_op(run, outputs=[]),
    "after, with inputs": lambda c, run: c.insert_after_op(lambda y, inputs: run(y), inputs=[0]),
    "after, may edit": lambda c, run: c.insert_after_op(lambda y: run(y)),
    "replaced": lambda c, run: c.replace_op(lambda x, op=c.op: (run(x), op(x))[1]),
}


@every_map
@pytest.mark.parametrize("tap", TAPS)
def test_a_tap_runs_once_for_all_iterations(mapped, tap):
    vanilla, ran = mapped(X).numpy(), []

    def run(*values):
        ran.append([value.size for value in values])

    tool = amanda.Tool("one tap")
    tool.add_inst_for_op(lambda c: TAPS[tap](c, run), ops="Relu")
    with amanda.apply(tool):
        inside = mapped(X).numpy()
    assert inside.tobytes() == vanilla.tobytes() == mapped(X).numpy().tobytes()
    assert ran == [[] if "no operands" in tap else [X.shape.num_elements()]]


@every_map
def test_edits_apply(mapped):
    with amanda.apply(doubles("Relu")):
        assert mapped(X).numpy().tolist() == [[4.0, 0.0], [12.0, 16.0]]
    replaced = amanda.Tool("replaces")
    replaced.add_inst_for_op(lambda c: c.replace_op(lambda x: x + np.float32(1)), ops="Relu")
    with amanda.apply(replaced):
        assert mapped(X).numpy().tolist() == [[4.0, -2.0], [8.0, 10.0]]


@pytest.mark.parametrize("pfor", [True, False])
@pytest.mark.parametrize("whole", ["jacobian", "batch_jacobian"])
@pytest.mark.parametrize("inside", [body, lambda x: tf.nn.relu(x) * 2.0], ids=["a function", "in line"])
def test_jacobians_under_taps_everywhere(pfor, whole, inside):
    @tf.function
    def jacobian(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = inside(x)
        return getattr(tape, whole)(y, x, experimental_use_pfor=pfor)

    vanilla, tool = jacobian(X).numpy(), looks()
    with amanda.apply(tool):
        got = jacobian(X).numpy()
    assert got.tobytes() == vanilla.tobytes()
    assert tool.ran["Relu"] == 1


def test_what_a_jacobian_is_made_of_belongs_to_the_forward_operators():
    linked = set()

    @tf.function
    def jacobian(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.relu(x)
        return tape.jacobian(y, x)

    tool = amanda.Tool("links")
    tool.add_inst_for_op(
        lambda c: linked.add((c.op.__name__, c.backward_op.__name__, c.grad_outputs, c.grad_inputs)),
        ops="Relu",
        backward=True,
        require_outputs=True,
    )
    with amanda.apply(tool):
        jacobian(X)
    assert ("Relu", "ReluGrad", (None,), (None,)) in linked  # gradients of all rows: none has an operand's shape
    assert {op for op, *_ in linked} == {"Relu"}


def test_an_operator_has_the_line_and_the_path_of_the_body():
    places = []

    def written(row):
        with tf.name_scope("block"):
            return tf.nn.relu(row)

    tool = amanda.Tool("places")
    tool.add_inst_for_op(lambda c: places.append((c.module_path, int(c.source.rpartition(":")[2]))), ops="Relu")
    with amanda.apply(tool):
        tf.function(lambda x: tf.vectorized_map(written, x))(X)
    assert places == [("loop_body.block", inspect.getsourcelines(written)[1] + 2)]


def test_in_a_session():
    seen = []
    with tf.Graph().as_default() as graph:
        y = tf.vectorized_map(lambda row: tf.nn.relu(row), tf.constant(X.numpy()))
    tool = amanda.Tool("forward")
    tool.add_inst_for_op(lambda c: c.insert_before_op(lambda x: seen.append(x.shape)), ops="Relu")
    with tf.compat.v1.Session(graph=graph) as session, amanda.apply(tool):
        assert session.run(y).tolist() == [[1.0, 0.0], [3.0, 4.0]]
    assert seen == [(2, 2)]


def test_a_call_in_the_body_that_has_effects_runs_as_without_a_scope():
    count = tf.Variable(0)

    @tf.function
    def counting(row):
        count.assign_add(1)
        return tf.nn.relu(row)

    mapped, counts = tf.function(lambda x: tf.map_fn(counting, x)), []
    for scope in (amanda.disabled(), amanda.apply(looks())):
        count.assign(0)
        with scope:
            mapped(X)
        counts.append(int(count.numpy()))
    assert counts == [2, 2]
