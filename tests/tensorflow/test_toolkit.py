"""The toolkit without PyTorch, and its names for TensorFlow."""

import sys

import amanda.toolkit
import tensorflow as tf
from amanda.toolkit import tensorflow as of_tensorflow
from amanda.toolkit.arrays import arrays_of, of_numpy


def test_the_toolkit_works_without_pytorch():
    assert "torch" not in sys.modules
    assert all(hasattr(amanda.toolkit, name) for name in amanda.toolkit.__all__)
    assert arrays_of(tf.ones(2).numpy()) is of_numpy


def test_a_variable_of_a_graph_is_found():
    assert all(hasattr(of_tensorflow, name) for name in of_tensorflow.__all__)
    variable = tf.Variable(tf.ones((2, 3)), name="weights")
    found = []

    @tf.function
    def traced():
        read = variable.read_value()
        found.extend([of_tensorflow.variable_of(tf.cast(read, tf.float64)), of_tensorflow.variable_of(read + 1)])
        return read

    traced()
    assert isinstance(found[0], of_tensorflow.VariableValue)
    assert found[1] is None
