"""Counts the convolutions in a train step of ResNet-50, forward and backward, and their cost.

The counter is that of the original tutorial. It is the same in a v1 session and in a function of TensorFlow 2; the session
runs the operators that its fetches need, the function those that its results need.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import amanda
import keras
import tensorflow as tf
from amanda.tools.flops import Flops


class CountOPTool(amanda.Tool):
    def __init__(self, op_name, backward_op_name):
        super().__init__()
        self.counter = 0
        self.backward_counter = 0
        self.op_name = op_name
        self.backward_op_name = backward_op_name
        self.add_inst_for_op(self.callback)
        self.add_inst_for_op(self.backward_callback, backward=True, require_outputs=True)

    def callback(self, context):
        if self.op_name in context.get_op().name:
            context.insert_before_op(self.counter_op)

    def backward_callback(self, context):
        if self.backward_op_name in context.get_backward_op().name:
            context.insert_after_backward_op(self.counter_backward_op)

    def counter_op(self, *inputs):
        self.counter += 1
        return inputs

    def counter_backward_op(self, *inputs):
        self.backward_counter += 1
        return inputs


model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3))


@tf.function
def step(images):
    with tf.GradientTape() as tape:
        y = model(images, training=True)
    return tape.gradient(y, model.trainable_variables)


tool, flops = CountOPTool("Conv2D", "Conv2DBackpropFilter"), Flops(uncounted=False)
with amanda.apply(tool, flops):
    step(tf.random.uniform((2, 64, 64, 3)))
print(f"Calls of conv2d op: {tool.counter}, backward op: {tool.backward_counter}")
print(flops.table("op"))
