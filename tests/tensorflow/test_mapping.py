"""The vocabulary's rules on TensorFlow: words, roles, layouts, and which gradient a backward operator computes."""

import contextlib

import amanda
import numpy as np
import pytest
import tensorflow as tf
from amanda.tools.mapping import names_of, vocabulary, words
from tutorial_mapping import MappedCountOPTool

KEYS = {"op_type", "roles", "layout", "weight_layout", "grad_roles"}


class Keys(amanda.Tool):
    """The vocabulary's keys of each operator that has some; of each backward operator with its type."""

    def __init__(self, **asked):
        super().__init__()
        self.depends_on(vocabulary())
        self.forward, self.backward = [], []
        self.add_inst_for_op(lambda c: self.forward.append(keys(c)), **asked)
        self.add_inst_for_op(self.look_backward, backward=True, **asked)

    def look_backward(self, context):
        shapes = [None if gradient is None else tuple(gradient.shape) for gradient in context.grad_inputs]
        self.backward.append((context.backward_op.__name__, keys(context), shapes))


def keys(context):
    return {key: value for key, value in context.items() if key in KEYS}


def in_function(program, *shapes):
    inputs = [tf.Variable(tf.ones(shape)) for shape in shapes]

    def run():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(program(*inputs))
        return loss, tape.gradient(loss, inputs)

    return tf.function(run, autograph=False)


def in_session(program, *shapes):
    graph = tf.Graph()
    with graph.as_default():
        inputs = [tf.compat.v1.get_variable(f"x{i}", initializer=tf.ones(shape)) for i, shape in enumerate(shapes)]
        loss = tf.reduce_sum(program(*inputs))
        gradients = tf.gradients(loss, inputs)
        initializer = tf.compat.v1.global_variables_initializer()

    def run():
        with tf.compat.v1.Session(graph=graph) as session:
            with amanda.disabled():
                session.run(initializer)
            session.run([loss, gradients])

    return run


each_front = pytest.mark.parametrize("front", [in_function, in_session])


def keys_of(front, program, *shapes, **asked):
    run, tool = front(program, *shapes), Keys(**asked)
    with amanda.apply(tool):
        run()
    return tool


def test_a_small_network():
    def network(x, kernel, scale, dense):
        x = tf.nn.conv2d(x, kernel, 1, "SAME")
        x = tf.compat.v1.nn.fused_batch_norm(x, scale, scale)[0]
        x = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "VALID")
        x = tf.nn.bias_add(tf.reshape(x, (2, 16)) @ dense, scale)
        return tf.nn.softmax(x + x)

    tool = keys_of(in_function, network, (2, 4, 4, 3), (3, 3, 3, 4), (4,), (16, 4), ops=names_of(*words()))
    assert tool.forward[:-1] == [
        {"op_type": "conv2d", "roles": {"input": 0, "weight": 1}, "layout": "NHWC", "weight_layout": "HWIO"},
        {"op_type": "batch_norm", "roles": {"input": 0, "weight": 1, "bias": 2, "mean": 3, "variance": 4},
         "layout": "NHWC"},
        {"op_type": "relu", "roles": {"input": 0}},
        {"op_type": "max_pool2d", "roles": {"input": 0}, "layout": "NHWC"},
        {"op_type": "matmul", "roles": {"left": 0, "right": 1, "weight": 1, "input": 0}, "weight_layout": "IO"},
        {"op_type": "bias_add", "roles": {"input": 0, "bias": 1}, "layout": "NC"},
        {"op_type": "add", "roles": {"left": 0, "right": 1}},
        {"op_type": "softmax", "roles": {"input": 0}},
    ]  # fmt: skip
    assert tool.forward[-1] == {"op_type": "sum", "roles": {"input": 0}}


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("program", "shape", "weight", "layout"),
    [
        (lambda w: X @ w, (3, 4), "right", "IO"),
        (lambda w: tf.matmul(X, w, transpose_b=True), (4, 3), "right", "OI"),
        (lambda w: w @ X, (4, 2), "left", "OI"),
        (lambda w: tf.matmul(w, X, transpose_a=True), (2, 4), "left", "IO"),
        (lambda w: tf.matmul(X[None], w, transpose_b=True), (1, 4, 3), "right", "NOI"),
        (lambda w: X @ tf.transpose(w), (4, 3), "right", "IO"),
        (lambda w: tf.cast(tf.cast(X, tf.float16) @ tf.cast(w, tf.float16), tf.float32), (3, 4), "right", "IO"),
    ],
)
@each_front
def test_products_have_a_weight_if_a_factor_is_a_variable(front, program, shape, weight, layout):
    (found, *_) = keys_of(front, program, shape, ops=names_of("matmul")).forward
    assert found["roles"]["weight"] == found["roles"][weight] != found["roles"]["input"]
    assert found["weight_layout"] == layout


@each_front
def test_a_product_of_activations_has_none(front):
    (found,) = keys_of(front, lambda x: tf.exp(x) @ tf.exp(x), (2, 2), ops=names_of("matmul")).forward
    assert found == {"op_type": "matmul", "roles": {"left": 0, "right": 1}}


LAYOUTS = {
    "conv2d": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), (2, 4, 4, 3), (3, 3, 3, 4), ("NHWC", "HWIO")),
    "conv3d": (lambda x, w: tf.nn.conv3d(x, w, [1] * 5, "SAME"), (2, 2, 4, 4, 3), (1, 3, 3, 3, 4), ("NDHWC", "DHWIO")),
    "depthwise_conv2d": (lambda x, w: tf.nn.depthwise_conv2d(x, w, [1] * 4, "SAME"), (2, 4, 4, 3), (3, 3, 3, 2),
                         ("NHWC", "HWIM")),
    "conv_transpose2d": (lambda x, w: tf.nn.conv2d_transpose(x, w, (2, 4, 4, 5), 1, "SAME"), (2, 4, 4, 3),
                         (3, 3, 5, 3), ("NHWC", "HWOI")),
    "conv_transpose3d": (lambda x, w: tf.nn.conv3d_transpose(x, w, (2, 2, 4, 4, 5), 1, "SAME"), (2, 2, 4, 4, 3),
                         (1, 3, 3, 5, 3), ("NDHWC", "DHWOI")),
}  # fmt: skip


@pytest.mark.parametrize("word", LAYOUTS)
@each_front
def test_convolutions_and_which_gradient_each_backward_operator_computes(front, word):
    program, x, w, layouts = LAYOUTS[word]
    tool = keys_of(front, program, x, w, ops=names_of(word))
    (found,) = tool.forward
    assert (found["op_type"], found["layout"], found["weight_layout"]) == (word, *layouts)
    computed = {}
    for _, here, shapes in tool.backward:
        assert here["op_type"] == word
        assert len(here["grad_roles"]) <= 1
        computed |= {role: shapes[position] for role, position in here["grad_roles"].items()}
    assert computed == {"input": x, "weight": w}


@each_front
def test_channels_first(front):
    def program(x, w):
        return tf.nn.bias_add(tf.nn.conv2d(x, w, 1, "SAME", data_format="NCHW"), [0.0] * 4, data_format="NCHW")

    tool = Keys(ops=names_of("conv2d", "bias_add"))
    run = front(program, (2, 3, 4, 4), (3, 3, 3, 4))
    with amanda.apply(tool), contextlib.suppress(tf.errors.UnimplementedError, tf.errors.InvalidArgumentError):
        run()  # a CPU may have no kernel for this layout; analyses have run by then
    assert [found["layout"] for found in tool.forward] == ["NCHW", "NCHW"]
    assert tool.forward[0]["weight_layout"] == "HWIO"


@each_front
def test_gradients_of_products(front):
    tool = keys_of(front, lambda a, b: a @ b, (2, 3), (3, 4), ops=names_of("matmul"))
    assert sorted((shapes[0] or shapes[1], here["grad_roles"]) for _, here, shapes in tool.backward) == [
        ((2, 3), {"left": 0, "input": 0}),
        ((3, 4), {"right": 1, "weight": 1}),
    ]


def test_every_role_is_an_input_of_the_operator():
    from tensorflow.python.framework import op_def_registry

    for word in words().values():
        for name, roles in word["TensorFlow"].items():
            inputs = {argument.name for argument in op_def_registry.get(name.removeprefix("tensorflow::")).input_arg}
            assert inputs >= set(roles.values()), name


def test_an_operator_without_a_word_has_no_keys():
    tool = keys_of(in_function, lambda x: tf.cumsum(tf.sin(x)), (3,), ops=["Sin", "Cumsum"])
    assert tool.forward == [{}, {}]
    assert {repr(here) for _, here, _ in tool.backward} == {"{}"}


@each_front
def test_the_tutorials_tool_counts(front):
    run = front(lambda x, w: tf.nn.conv2d(tf.nn.conv2d(x, w, 1, "SAME"), w, 1, "SAME"), (2, 4, 4, 3), (3, 3, 3, 3))
    tool = MappedCountOPTool(op_name="Conv2D", backward_op_name="Conv2DBackpropFilter")
    with amanda.apply(tool):
        run()
    assert (tool.counter, tool.backward_counter) == (2, 2)
