"""Models whose v1 graphs call functions, and tools for the operators in them."""

from __future__ import annotations

import amanda
import numpy as np
import tensorflow as tf
from real_programs import session_config

v1 = tf.compat.v1


X = (np.array([[1, 2, 3], [-1, 0.5, 2]]) / 4).astype(np.float32)
W = np.array([[0.5, 0.3, -0.2], [0.4, 0.2, 0.6], [0.1, -0.7, 0.3]], np.float32)
MASK = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 0]], np.float32)


def layer(x, w, activation):
    return activation(tf.nn.relu(x @ w)) * tf.sin(x)


def call(x, layer):
    return tf.function(layer)(x)


def called_twice(x, layer):
    function = tf.function(layer)
    return function(function(x))


def called_in_a_call(x, layer):
    inner = tf.function(layer)
    return tf.function(lambda x: inner(x) + 1.0)(x)


def cond(x, layer):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: layer(x), lambda: x)


def case(x, layer):
    return tf.switch_case(tf.constant(1), [lambda: x, lambda: layer(x), lambda: tf.exp(x)])


def loop(x, layer):
    return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, layer(a)), [0, x])[1]


def nested(x, layer):
    def body(i, a):
        return i + 1, tf.cond(i > 0, lambda: layer(a), lambda: a)

    return tf.function(lambda x: tf.while_loop(lambda i, _: i < 3, body, [0, x])[1])(x)


def called_in_frames(x, layer):
    """The loop is nodes of the graph itself."""
    function = tf.function(layer)
    v1.disable_control_flow_v2()
    try:
        return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, function(a)), [0, x])[1]
    finally:
        v1.enable_control_flow_v2()


CALLS = [call, called_twice, called_in_a_call, cond, case, loop, nested]
RUNS = {call: 1, called_twice: 2, called_in_a_call: 1, cond: 1, case: 1, loop: 3, nested: 2, called_in_frames: 3}


class Model:
    """sum(y²) of what `calls` makes of a layer, its gradients, and a step of gradient descent."""

    def __init__(self, calls, mask=None, activation=lambda y: y):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, [2, 3], name="x")
            self.w = v1.get_variable("w", initializer=W, use_resource=True)
            with tf.name_scope("block"):
                self.y = calls(self.x, lambda x: layer(x, self.w if mask is None else self.w * mask, activation))
            self.loss = tf.reduce_sum(tf.square(self.y))
            if calls is not called_in_frames:
                self.gradients = tf.gradients(self.loss, [self.w, self.x])
                self.train = v1.train.GradientDescentOptimizer(0.1).minimize(self.loss)
            self.saver = v1.train.Saver()
            self.init = v1.global_variables_initializer()
        self.session = v1.Session(graph=self.graph, config=session_config())
        self.session.run(self.init)

    def forward(self):
        return self.session.run([self.y, self.loss], {self.x: X})

    def both(self):
        return self.session.run([self.y, self.loss, *self.gradients], {self.x: X})

    def trained(self):
        """Losses of three steps, and the variable after them."""
        losses = [self.session.run([self.loss, self.train], {self.x: X})[0] for _ in range(3)]
        return [*losses, self.session.run(self.w)]


def equal(got, expected):
    return len(got) == len(expected) and all(map(np.array_equal, got, expected))


def close(got, expected):
    return len(got) == len(expected) and all(np.allclose(a, b, rtol=1e-5) for a, b in zip(got, expected, strict=True))


def edits(op, function, how="insert_after_op"):
    tool = amanda.Tool(f"edits {op}")
    tool.add_inst_for_op(lambda context: getattr(context, how)(function), ops=f"tensorflow::{op}")
    return tool


class Mask(amanda.Tool):
    """Masks the weight of each product, and its gradient."""

    def __init__(self):
        super().__init__()
        self.add_inst_for_op(lambda context: context.insert_before_op(self.mask, inputs=[1]), ops="MatMul")
        self.add_inst_for_op(self.backward, ops="MatMul", backward=True, require_outputs=True)

    def backward(self, context):
        if context.grad_inputs[1] is not None:
            context.insert_after_backward_op(self.mask, grad_inputs=[1])

    def mask(self, weight):
        return weight * MASK


class Events(amanda.Tool):
    """The order in which routines run at products and their gradients, with places."""

    def __init__(self):
        super().__init__()
        self.events, self.places = [], set()
        self.add_inst_for_op(self.analyze, ops=["MatMul", "Relu"])

    def analyze(self, context):
        name = context.op.__name__
        self.places.add((name, context.module_path, context.source.rpartition("/")[2].partition(":")[0]))
        context.insert_before_op(self.note, event=name)
        context.insert_before_backward_op(self.note, event=f"backward {name}")

    def note(self, *values, event):
        self.events.append(event)
