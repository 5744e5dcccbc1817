"""The order in which tools are shown a graph's operators."""

import amanda
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def test_a_backward_operator_that_takes_shapes_alone_comes_after_its_forward_operator():
    with tf.Graph().as_default():
        images = v1.placeholder(tf.float32, [2, 5, 5, 3])
        filters = v1.get_variable("filters", [3, 3, 3, 4])
        (gradient,) = tf.gradients(tf.nn.relu(tf.nn.conv2d(images, filters, 1, "VALID")), [filters])
        session = v1.Session()
        session.run(v1.global_variables_initializer())
    shown = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: shown.append(context.op.__name__))
    tool.add_inst_for_op(lambda context: shown.append(context.backward_op.__name__), backward=True)
    given = {images: np.ones((2, 5, 5, 3), np.float32)}
    expected = session.run(gradient, given)  # which needs no shape but those, and not the scores
    with amanda.apply(tool):
        np.testing.assert_array_equal(session.run(gradient, given), expected)
    assert "ShapeN" in shown or "Shape" in shown
    assert shown.index("Conv2D") < min(i for i, name in enumerate(shown) if name != "Conv2D")
