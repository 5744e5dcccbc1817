"""v1 loops and conditionals, forward and backward, against numpy."""

import amanda
import numpy as np
import pytest
import tensorflow as tf

v1 = tf.compat.v1

X = np.array([1.0, -2.0, 0.5], np.float32)
W = np.array([0.9, 1.1, -0.7], np.float32)
TIMES = 3


@pytest.fixture(autouse=True)
def control_flow_v1():
    was_enabled = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    yield
    if was_enabled:
        v1.enable_control_flow_v2()


class Loop:
    """h = tanh(w * h + x), some times, and the gradients of its sum."""

    def __init__(self, use_resource=True):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, [3], name="x")
            self.w = v1.get_variable("w", initializer=W, use_resource=use_resource)
            w = tf.identity(self.w)

            def body(i, h):
                with tf.name_scope("cell"):
                    return tf.subtract(i, -1), tf.tanh(tf.multiply(w, h) + self.x)

            _, self.h = v1.while_loop(lambda i, h: i < TIMES, body, [0, tf.ones_like(self.x)], name="loop")
            self.loss = tf.reduce_sum(self.h)
            self.gradients = tf.gradients(self.loss, [w, self.x])
            init = v1.global_variables_initializer()
        self.session = v1.Session(graph=self.graph)
        self.session.run(init)

    def run(self):
        return self.session.run([self.h, *self.gradients], {self.x: X})


def by_hand(mask=1.0, result=lambda h: h, into=lambda g: g):
    """`mask` multiplies w; `result`: of each tanh, seen by what follows; `into`: of the gradient that reaches tanh."""
    hs, tanhs, h = [], [], np.ones(3, np.float32)
    for _ in range(TIMES):
        hs.append(h)
        tanhs.append(np.tanh(W * mask * h + X))
        h = result(tanhs[-1])
    gradient, dw, dx = np.ones(3, np.float32), 0, 0
    for before, tanh in zip(reversed(hs), reversed(tanhs), strict=True):
        gradient = into(gradient) * (1 - tanh**2)
        dw, dx = dw + gradient * before, dx + gradient
        gradient = gradient * (W * mask)
    return [h, dw, dx]


def tool_for(op, analyze, **options):
    tool = amanda.Tool(f"for {op}")
    tool.add_inst_for_op(analyze, ops=f"tensorflow::{op}", **options)
    return tool


def check(got, expected):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_model_by_hand_is_right():
    check(Loop().run(), by_hand())


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_an_operand_that_is_edited_in_each_iteration(use_resource):
    """The loop, and that of the gradients, which sees the edited operand."""
    loop, mask = Loop(use_resource), np.array([1.0, 0.0, 2.0], np.float32)
    vanilla = loop.run()
    edits = tool_for("Mul", lambda context: context.insert_before_op(lambda w: w * mask, inputs=[0]))
    with amanda.apply(edits):
        check(loop.run(), by_hand(mask))
    for a, b in zip(loop.run(), vanilla, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_result_that_is_edited_in_each_iteration():
    """tanh's own gradient is computed from its own result; what follows sees the edited one, and so does its gradient."""
    loop = Loop()
    edits = tool_for("Tanh", lambda context: context.insert_after_op(lambda h: h + np.float32(0.5)))
    with amanda.apply(edits):
        check(loop.run(), by_hand(result=lambda h: h + 0.5))


def test_a_gradient_that_is_edited_in_each_iteration():
    loop = Loop()
    edits = tool_for("Tanh", lambda context: context.insert_before_backward_op(lambda g: 2 * g), backward=True)
    with amanda.apply(edits):
        check(loop.run(), by_hand(into=lambda g: 2 * g))


def test_looking_in_loops_changes_no_bit_and_sees_each_iteration():
    loop, seen = Loop(), []
    vanilla = loop.run()
    tool = tool_for("Tanh", lambda context: context.insert_after_op(lambda h: seen.append(h.copy())))
    tool.add_inst_for_op(
        lambda context: context.insert_after_backward_op(lambda g: seen.append("back")),
        ops="tensorflow::Tanh",
        backward=True,
    )
    with amanda.apply(tool):
        got = loop.run()
    for a, b in zip(got, vanilla, strict=True):
        np.testing.assert_array_equal(a, b)
    assert sum(isinstance(value, str) for value in seen) == TIMES
    values = [value for value in seen if not isinstance(value, str)]
    assert len(values) == TIMES
    np.testing.assert_array_equal(values[-1], vanilla[0])


def test_a_run_of_a_backward_operator_meets_its_iteration():
    loop, met = Loop(), []
    tool = tool_for("Tanh", lambda c: c.insert_after_op(lambda h, run: run.update(h=h.copy()), with_run=True))
    tool.add_inst_for_op(
        lambda c: c.insert_before_backward_op(lambda *g, run: met.append((run.index, run["h"])), with_run=True),
        ops="tensorflow::Tanh",
        backward=True,
    )
    with amanda.apply(tool):
        loop.run()
    hs, h = [], np.ones(3, np.float32)
    for _ in range(TIMES):
        h = np.tanh(W * h + X)
        hs.append(h)
    assert [index for index, _ in met] == [2, 1, 0]
    for (_, got), expected in zip(met, reversed(hs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_paths_and_links_in_loops():
    loop, paths, linked = Loop(), {}, set()
    tool = amanda.Tool("names")
    tool.add_inst_for_op(lambda context: paths.update({context.op.__name__: context.module_path}))
    tool.add_inst_for_op(
        lambda context: linked.add((context.op.__name__, context.backward_op.__name__)),
        ops=["tensorflow::Mul", "tensorflow::Tanh"],
        backward=True,
    )
    with amanda.apply(tool):
        loop.run()
    assert paths["Tanh"] == paths["Mul"] == "loop.cell"
    assert {("Tanh", "TanhGrad"), ("Mul", "Mul")} <= linked


def test_a_loop_in_a_loop():
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [])

        def inner(i, h):
            return tf.subtract(i, -1), tf.multiply(h, x)

        def outer(i, h):
            _, h = v1.while_loop(lambda i, h: i < 2, inner, [0, h], name="inner")
            return tf.subtract(i, -1), h + 1.0

        _, y = v1.while_loop(lambda i, h: i < 3, outer, [0, tf.constant(1.0)], name="outer")
        gradient = tf.gradients(y, x)[0]
    edits = tool_for("Mul", lambda context: context.insert_before_op(lambda x: 2 * x, inputs=[1]))

    def by_hand(x):
        h = np.polynomial.Polynomial([1.0])
        for _ in range(3):
            h = h * np.polynomial.Polynomial([0.0, 1.0]) ** 2 + 1.0
        return h(x), h.deriv()(x)

    with v1.Session(graph=graph) as session, amanda.apply(edits):
        got = session.run([y, gradient], {x: 0.75})
    np.testing.assert_allclose(got, by_hand(1.5), rtol=1e-6)  # gradients pass edits unchanged: that of 2x is x's


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_conditional_and_its_gradient(is_taken):
    graph, ran = tf.Graph(), []
    with graph.as_default():
        x = v1.placeholder(tf.float32, [3])
        taken = v1.placeholder(tf.bool, [])
        y = v1.cond(taken, lambda: tf.square(tf.tanh(x)), lambda: tf.multiply(x, 3.0), name="choice")
        gradient = tf.gradients(y, x)[0]
    tool = amanda.Tool("edits")
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(lambda x: ran.append(1) or 2 * x, inputs=[0]),
        ops=["tensorflow::Tanh", "tensorflow::Mul"],
    )
    with v1.Session(graph=graph) as session:
        vanilla = session.run([y, gradient], {x: X, taken: is_taken})
        with amanda.apply(tool):
            got = session.run([y, gradient], {x: X, taken: is_taken})
        again = session.run([y, gradient], {x: X, taken: is_taken})
    tanh = np.tanh(2 * X)
    expected = [tanh**2, 2 * tanh * (1 - tanh**2)] if is_taken else [6 * X, np.full(3, 3.0)]
    check(got, expected)
    assert ran  # of the branch that is taken, and maybe of its gradient
    for a, b in zip(again, vanilla, strict=True):
        np.testing.assert_array_equal(a, b)
