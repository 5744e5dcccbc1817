"""The TensorFlow part of the original tutorial, its tools word for word, on the ResNet-50 of three fronts."""

from __future__ import annotations

from typing import Any

import amanda
import amanda.core.tool
import keras
import pytest
import tensorflow as tf
import tf_keras
from tutorial_mapping import MappedCountOPTool

# fmt: off
# ruff: noqa: W293 -- as printed


class CountOPTool(amanda.Tool):
    def __init__(self, op_name: str, backward_op_name: str):
        super().__init__()
        self.counter = 0
        self.backward_counter = 0
        self.op_name = op_name
        self.backward_op_name = backward_op_name
        self.add_inst_for_op(self.callback)
        self.add_inst_for_op(self.backward_callback, backward=True, require_outputs=True)

    # analysis routine, filter conv2d operators
    def callback(self, context: amanda.OpContext):
        op = context.get_op()
        if self.op_name in op.name:
            context.insert_before_op(self.counter_op)

    # analysis routine, filter conv2d operators
    def backward_callback(self, context: amanda.OpContext):
        op = context.get_backward_op()
        if self.backward_op_name in op.name:
            context.insert_after_backward_op(self.counter_backward_op)

    # instrumentation routine: op for counting
    def counter_op(self, *inputs):
        self.counter += 1
        return inputs
    
    def counter_backward_op(self, *inputs):
        self.backward_counter += 1
        return inputs
# fmt: on


# Of the same run: tracing a ResNet-50 takes long.
BOTH = [CountOPTool, MappedCountOPTool]


class Forward(amanda.Tool):
    """The forward operators that convolutions of the backward pass are for."""

    def __init__(self) -> None:
        super().__init__()
        self.filters: set[int] = set()
        self.inputs: set[int] = set()
        self.add_inst_for_op(self.analyze, ops="Conv2D", backward=True)

    def analyze(self, context: amanda.OpContext) -> None:
        if not context.backward_op.name.startswith("tensorflow::Conv2DBackprop"):
            return
        ids = self.filters if context.backward_op.name.endswith("Filter") else self.inputs
        assert context.op_id not in ids
        ids.add(context.op_id)


# The printed counts, 106 and 53, are of the whole graph: `model(x)` copies the model. A session runs what its fetches
# need: 53 convolutions, and for the gradient of x no gradient of a filter.
@pytest.mark.slow
@pytest.mark.parametrize(("of", "filters", "inputs"), [("x", 0, 53), ("weights", 53, 52)])
def test_a_session_runs_53_of_both(of: str, filters: int, inputs: int) -> None:
    ResNet50, v1 = tf_keras.applications.ResNet50, tf.compat.v1
    with tf.Graph().as_default():
        model = ResNet50(weights=None)
        x = tf.random.uniform(shape=[1, 224, 224, 3])

        tools = [count(op_name="Conv2D", backward_op_name="Conv2DBackpropFilter") for count in BOTH]
        to_input = [count(op_name="none", backward_op_name="Conv2DBackpropInput") for count in BOTH]
        links = Forward()

        with amanda.tool.apply(*tools, *to_input, links):
            y = model(x)
            with v1.Session() as session:
                session.run(v1.initialize_all_variables())
                g = tf.gradients(y, x if of == "x" else model.trainable_weights)

                session.run(g)
    assert [(tool.counter, tool.backward_counter) for tool in tools] == [(53, filters)] * 2
    assert [tool.backward_counter for tool in to_input] == [inputs] * 2
    assert (len(links.filters), len(links.inputs)) == (filters, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("library", [keras, tf_keras])
def test_a_train_step_runs_53_of_both(library: Any) -> None:
    model = library.applications.ResNet50(weights=None, input_shape=(64, 64, 3))

    @tf.function
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            y = model(x, training=True)
        return tape.gradient(y, model.trainable_variables)

    tools, links = [count(op_name="Conv2D", backward_op_name="Conv2DBackpropFilter") for count in BOTH], Forward()
    with amanda.tool.apply(*tools, links):
        for _ in range(2):
            step(tf.random.uniform(shape=[1, 64, 64, 3]))
    assert [(tool.counter, tool.backward_counter) for tool in tools] == [(2 * 53, 2 * 53)] * 2
    assert len(links.filters) == 53
    assert len(links.inputs) == 52  # no one needs that of the image
    assert links.inputs < links.filters
