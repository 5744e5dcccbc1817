"""Tapes around functions and in them: gradients through taps, and which operators belong together."""

from __future__ import annotations

import amanda
import numpy as np
import pytest
import tensorflow as tf

from test_function import Mine, doubles, looks, values

RANDOM = np.random.RandomState(0)
X = tf.constant(RANDOM.randn(2, 4).astype(np.float32))
W = tf.constant(RANDOM.randn(4, 4).astype(np.float32))


def chain(x, w):
    return tf.reduce_sum(tf.tanh(x @ w) @ w)


def residual(x, w):
    """One value has four users, whose gradients are summed in an order."""
    return tf.reduce_sum(tf.nn.relu(x @ w) * tf.sin(x @ w + 0.1) + tf.tanh(x @ tf.transpose(w)) + x * tf.cos(x))


def loop(x, w):
    for _ in tf.range(3):
        x = tf.tanh(x @ w)
    return tf.reduce_sum(x)


def branch(x, w):
    if tf.reduce_sum(x) > -1e9:
        y = tf.tanh(x @ w)
    else:
        y = x * 3.0
    return tf.reduce_sum(y)


def loop_of_branches(x, w):
    for _ in tf.range(3):
        if tf.reduce_sum(x) > 0.0:
            x = tf.tanh(x @ w)
        else:
            x = x * 1.5
    return tf.reduce_sum(x)


def case(x, w):
    return tf.switch_case(tf.constant(1), [lambda: tf.reduce_sum(x), lambda: tf.reduce_sum(tf.sin(x @ w))])


def maps(x, w):
    return tf.reduce_sum(tf.map_fn(lambda row: tf.tanh(tf.linalg.matvec(w, row)), x))


def nested(x, w):
    inner = tf.function(lambda a: tf.tanh(a @ w))
    return tf.reduce_sum(inner(inner(x)))


@tf.custom_gradient
def doubled_exp(x):
    y = tf.exp(x)
    return y, lambda dy: 2.0 * dy * y


def custom(x, w):
    return tf.reduce_sum(doubled_exp(x @ w))


def recomputed(x, w):
    return tf.reduce_sum(tf.recompute_grad(lambda a: tf.tanh(a) * 2.0)(tf.identity(x @ w)))


def gathered(x, w):
    return tf.reduce_sum(tf.gather(w, [0, 1, 1]) * tf.gather(w, [1, 2, 2]))


PROGRAMS = [chain, residual, loop, branch, loop_of_branches, case, maps, nested, custom, recomputed, gathered]


def gradient(program, *, persistent=False):
    def step(x, w):
        with tf.GradientTape(persistent=persistent) as tape:
            tape.watch((x, w))
            loss = program(x, w)
        found = tape.gradient(loss, (x, w), unconnected_gradients="zero")
        return loss, [tf.convert_to_tensor(each) for each in found]

    return step


def second_derivative(program):
    def step(x, w):
        with tf.GradientTape() as outer:
            outer.watch(w)
            with tf.GradientTape() as inner:
                inner.watch(w)
                loss = program(x, w)
            first = inner.gradient(loss, w)
        return first, outer.gradient(first, w)

    return step


KINDS = {
    "inside": lambda program: tf.function(gradient(program)),
    "outside": lambda program: gradient(tf.function(program)),
    "persistent inside": lambda program: tf.function(gradient(program, persistent=True)),
    "persistent outside": lambda program: gradient(tf.function(program), persistent=True),
    "second inside": lambda program: tf.function(second_derivative(program)),
    "second outside": lambda program: second_derivative(tf.function(program)),
}


@pytest.fixture
def literal():
    """TensorFlow's optimizer rewrites graphs, for instance sums of products with a common factor, so that results differ in
    the last bit; not where routines look at the values that it would no longer compute."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        *((program, kind) for program in PROGRAMS for kind in ("inside", "outside")),
        *((program, f"persistent {side}") for program in (loop, nested) for side in ("inside", "outside")),
        *((program, f"second {side}") for program in (chain, residual, branch) for side in ("inside", "outside")),
    ],
)
def test_looking_changes_no_bit(program, kind, literal):
    step, tool = KINDS[kind](program), looks()
    scope, vanilla = amanda.apply(tool), values(step(X, W))
    for _ in range(2):
        with scope:
            assert values(step(X, W)) == vanilla
        assert values(step(X, W)) == vanilla
    assert sum(tool.ran.values()) > 4


def hand_masked(program, w, mask):
    loss, (dx, dw) = gradient(program)(X, w * mask)
    return values((loss, dx, dw * mask))


@pytest.mark.parametrize("kind", ["inside", "outside"])
@pytest.mark.parametrize("program", [chain, loop_of_branches, nested])
def test_masked_weights_have_masked_gradients(program, kind):
    mask = (RANDOM.rand(4, 4) > 0.5).astype(np.float32)
    tool = amanda.Tool("masks")
    tool.add_inst_for_op(lambda context: context.insert_before_op(lambda w: w * mask, inputs=[1]), ops="MatMul")

    def mask_gradient(context):
        if context.backward_op.__name__ == "MatMul":
            context.insert_after_backward_op(lambda dw: dw * mask, grad_inputs=[1])

    tool.add_inst_for_op(mask_gradient, ops="MatMul", backward=True)
    step = KINDS[kind](program)
    with amanda.apply(tool):
        found = values(step(X, W))
    np.testing.assert_allclose(found[0], hand_masked(program, W, mask)[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], hand_masked(program, W, mask)[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2], hand_masked(program, W, mask)[2], rtol=1e-5, atol=1e-6)


def zeros(how):
    tool = amanda.Tool("zeros")

    def analyze(context):
        insert = {"replace": context.replace_op, "after": context.insert_after_op}[how]
        insert(np.zeros_like)

    tool.add_inst_for_op(analyze, ops="Relu")
    return tool


@pytest.mark.parametrize("kind", ["inside", "outside"])
def test_gradients_pass_an_edit_and_are_those_of_what_is_replaced(kind):
    step = KINDS[kind](lambda x, w: tf.reduce_sum(tf.nn.relu(x @ w) * 3.0))
    vanilla = values(step(X, W))
    with amanda.apply(zeros("after")):
        loss, dx, dw = values(step(X, W))
    assert loss == 0.0
    assert [dx, dw] == vanilla[1:]  # relu's backward operator sees what relu gave
    with amanda.apply(zeros("replace")):
        loss, dx, dw = values(step(X, W))
    assert loss == 0.0
    assert not np.any(dx) and not np.any(dw)  # of zeros


@pytest.mark.parametrize("program", [chain, loop, nested])
def test_a_gradient_that_is_computed_after_the_scope_runs_the_tools_of_its_forward_pass(program):
    function, tool = tf.function(program), looks()
    scope = amanda.apply(tool)
    with tf.GradientTape() as tape:
        tape.watch(W)
        vanilla_loss = function(X, W)
    vanilla = values(tape.gradient(vanilla_loss, W))
    with tf.GradientTape() as tape:
        tape.watch(W)
        with scope:
            loss = function(X, W)
    assert "TanhGrad" not in tool.ran
    assert values(tape.gradient(loss, W)) == vanilla
    assert tool.ran["TanhGrad"] == {chain: 1, loop: 3, nested: 2}[program]


def test_a_gradient_of_a_vanilla_forward_pass_is_vanilla_in_a_scope():
    function, tool = tf.function(loop), looks()
    with tf.GradientTape() as tape:
        tape.watch(W)
        loss = function(X, W)
    with amanda.apply(tool, amanda.Tool("other")):
        tape.gradient(loss, W)
    assert "TanhGrad" not in tool.ran


@pytest.mark.parametrize("kind", ["inside", "outside"])
@pytest.mark.parametrize("op", ["TanhGrad", "MatMul"])
def test_the_error_of_a_backward_routine_is_the_same_object(kind, op):
    error = Mine("mine")

    def fails(*_):
        raise error

    tool = amanda.Tool("careless")

    def analyze(context):
        if context.backward_op.__name__ == op:
            context.insert_after_backward_op(fails)

    tool.add_inst_for_op(analyze, backward=True)
    step = KINDS[kind](loop)
    vanilla = values(step(X, W))
    with amanda.apply(tool), pytest.raises(Mine) as raised:
        step(X, W)
    assert raised.value is error
    assert values(step(X, W)) == vanilla


@pytest.mark.parametrize("kind", ["inside", "outside"])
@pytest.mark.parametrize("program", [chain, residual, loop, branch])
def test_gradients_that_tools_are_shown_are_the_programs(program, kind):
    """The gradients at the positions of MatMul, against those of a program without amanda."""
    shown = {}
    tool = amanda.Tool("gradients")

    def analyze(context):
        place = context.op_id
        context.insert_before_backward_op(lambda *given: shown.setdefault((place, "out"), []).extend(given))
        context.insert_after_backward_op(lambda *given: shown.setdefault((place, "in"), []).extend(given))

    tool.add_inst_for_op(analyze, ops="Tanh", backward=True)
    with amanda.apply(tool):
        KINDS[kind](program)(X, W)
    outs = [value for (_, side), given in shown.items() if side == "out" for value in given if value is not None]
    ins = [value for (_, side), given in shown.items() if side == "in" for value in given if value is not None]
    assert len(outs) == len(ins) == (3 if program is loop else 1)

    expected_out, expected_in = tanh_gradients(program)
    for found, expected in zip(outs, expected_out, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    for found, expected in zip(ins, expected_in, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def tanh_gradients(program):
    """By a tape that watches what goes into tanh and comes out of it, in eager mode."""
    given, gave = [], []
    original = tf.tanh

    def watched(x):
        tape.watch(x)
        given.append(x)
        y = original(x)
        gave.append(tf.identity(y))
        return gave[-1]

    with tf.GradientTape(persistent=True) as tape:
        tf.tanh = watched
        try:
            loss = program(X, W)
        finally:
            tf.tanh = original
    return [[tape.gradient(loss, value).numpy() for value in reversed(side)] for side in (gave, given)]


def test_a_tape_that_is_persistent_runs_its_backward_tools_each_time():
    function, tool = tf.function(chain), looks()
    with amanda.apply(tool):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(W)
            loss = function(X, W)
        first, second = tape.gradient(loss, W), tape.gradient(loss, W)
    assert values(first) == values(second)
    assert tool.ran["TanhGrad"] == 2


def test_edits_of_gradients_flow_on():
    tool = amanda.Tool("doubles")

    def analyze(context):
        if context.backward_op.__name__ == "TanhGrad":
            context.insert_before_backward_op(lambda dy: dy * 2)

    tool.add_inst_for_op(analyze, backward=True)
    for kind in ("inside", "outside"):
        step = KINDS[kind](lambda x, w: tf.reduce_sum(tf.tanh(x @ w)))
        _, dx, dw = values(step(X, W))
        with amanda.apply(tool):
            assert values(step(X, W))[1:] == [np.multiply(2, dx).tolist(), np.multiply(2, dw).tolist()]


def test_doubles_of_inner_values_are_seen_by_users_only():
    step = KINDS["outside"](chain)
    _, _, dw = values(step(X, W))
    with amanda.apply(doubles("Tanh")):
        _, _, edited = values(step(X, W))
    y = tf.tanh(X @ W)
    own = tf.matmul(X, (1 - y * y) * tf.matmul(tf.ones([2, 4]), W, transpose_b=True), transpose_a=True)
    of_product = tf.matmul(y, tf.ones([2, 4]), transpose_a=True)
    np.testing.assert_allclose(dw, own + of_product, rtol=1e-5)
    np.testing.assert_allclose(edited, own + 2 * of_product, rtol=1e-5)
