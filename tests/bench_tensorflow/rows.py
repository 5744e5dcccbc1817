"""What is active in a row, and TensorFlow's own ways to call Python from a graph."""

import amanda
import tensorflow as tf
from amanda import _tools
from amanda.tool import NativeTool
from amanda.tools.flops import Flops

CONVOLUTIONS = ["tensorflow::Conv2D", "tensorflow::Conv2DBackpropFilter", "tensorflow::Conv2DBackpropInput"]


def looking(ops):
    """A tool with a Python routine after each operator, forward and backward: it gets the result, and counts."""

    class Looking(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.count = 0
            self.add_inst_for_op(self.analyze, ops=ops)
            self.add_inst_for_op(self.analyze_backward, ops=ops, backward=True)

        def analyze(self, context):
            context.insert_after_op(self.tick, outputs=[0])

        def analyze_backward(self, context):
            context.insert_after_backward_op(self.tick)

        def tick(self, *results):
            self.count += 1

    return Looking()


STEP_ROWS = {
    "nobody asks": lambda: looking("tensorflow::Betainc"),
    "C++ routine on each convolution": lambda: Flops(uncounted=False),
    "Python routine on each convolution": lambda: looking(CONVOLUTIONS),
}
CALL_ROWS = {
    "C++ routine": lambda: NativeTool(_tools.counting_tool(backward=False)),
    "Python routine, gets the result and may replace it": lambda: looking("tensorflow::AddV2"),
}


def _tick(x):
    return x


PEERS = {
    "tf.py_function": lambda x: tf.ensure_shape(tf.py_function(_tick, [x], tf.float32), x.shape),
    "tf.numpy_function": lambda x: tf.ensure_shape(tf.numpy_function(_tick, [x], tf.float32), x.shape),
}
