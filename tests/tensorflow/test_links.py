"""Forward operators of backward ones, and the gradients that these take and give."""

import amanda
import numpy as np
import pytest
import tensorflow as tf
from amanda.drivers.tensorflow.view import links

v1 = tf.compat.v1


class Collects(amanda.Tool):
    """(forward, backward): names of the gradients taken and given."""

    def __init__(self):
        super().__init__()
        self.forward, self.backward = [], {}
        self.add_inst_for_op(lambda context: self.forward.append(context.op.__name__))
        self.add_inst_for_op(self.collect, backward=True, require_outputs=True)

    def collect(self, context):
        key = (context.op.__name__, context.backward_op.__name__)
        names = [[name_of(operand) for operand in side] for side in (context.grad_outputs, context.grad_inputs)]
        self.backward.setdefault(key, []).append(names)


def name_of(operand):
    if isinstance(operand, list):
        return [name_of(each) for each in operand]
    return None if operand is None else operand.op.name


def build():
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        w = v1.get_variable("w", initializer=np.ones((3, 2), np.float32))
        b = v1.get_variable("b", initializer=np.ones(2, np.float32), use_resource=False)
        y = tf.nn.relu(tf.matmul(x, w, name="product") + b)
        joined = tf.concat([y, y], 1, name="joined")
        loss = tf.reduce_sum(joined)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        init = v1.global_variables_initializer()
    session = v1.Session(graph=graph)
    session.run(init)
    return session, x, train


def collected(session, x, fetch):
    tool = Collects()
    with amanda.apply(tool):
        session.run(fetch, {x: np.ones((1, 3), np.float32)})
    return tool


@pytest.fixture(params=["watched", "by structure"])
def tool(request, monkeypatch):
    if request.param == "by structure":  # as if the graph were older than the driver
        monkeypatch.setattr(links, "gradient_of", lambda op: None)
    return collected(*build())


def test_a_product_has_two_gradients(tool):
    incoming = "gradients/add_grad/tuple/control_dependency"
    gradients = sorted(tool.backward["MatMul", "MatMul"], key=repr)
    assert gradients == [
        [[incoming], ["gradients/product_grad/MatMul", None]],
        [[incoming], [None, "gradients/product_grad/MatMul_1"]],
    ]


def test_a_sums_gradients_are_that_of_its_result_and_a_sum(tool):
    assert tool.backward["AddV2", "Sum"] == [[["gradients/Relu_grad/ReluGrad"], [None, None]]]
    assert tool.backward["AddV2", "Reshape"] == [[[None], [None, "gradients/add_grad/Reshape"]]]


def test_members_of_a_list(tool):
    slices = tool.backward["ConcatV2", "Slice"]
    assert [inputs for _, inputs in slices] == [
        [["gradients/joined_grad/Slice", None], None],
        [[None, "gradients/joined_grad/Slice_1"], None],
    ]


def test_a_sum_of_gradients_is_no_operator(tool):
    assert tool.backward["Relu", "ReluGrad"] == [[["gradients/AddN"], ["gradients/Relu_grad/ReluGrad"]]]
    assert "AddN" not in tool.forward


def test_what_begins_gradients_and_reads_variables_is_no_operator(tool):
    updates = {"ResourceApplyGradientDescent", "ApplyGradientDescent"}
    assert [name for name in tool.forward if name not in updates] == ["MatMul", "AddV2", "Relu", "ConcatV2"]


def test_a_sum_of_the_program_is_an_operator():
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [3])
        total = tf.add_n([x, tf.nn.relu(x)])
    with v1.Session(graph=graph) as session:
        tool = Collects()
        with amanda.apply(tool):
            session.run(total, {x: np.ones(3, np.float32)})
    assert tool.forward == ["Relu", "AddN"]


def test_second_derivatives_belong_to_the_same_operator():
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [3])
        first = tf.gradients(tf.tanh(x), x)[0]
        second = tf.gradients(first, x)[0]
    with v1.Session(graph=graph) as session:
        tool = Collects()
        with amanda.apply(tool):
            got = session.run(second, {x: np.float32([0.1, 0.2, 0.3])})
    tanh = np.tanh(np.float32([0.1, 0.2, 0.3]))
    np.testing.assert_allclose(got, -2 * tanh * (1 - tanh**2), rtol=1e-5)
    assert {forward for forward, _ in tool.backward} == {"Tanh"}


def test_two_gradients_of_one_operator():
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [3])
        y = tf.tanh(x)
        fetches = [tf.gradients(y, x)[0], tf.gradients(2 * y, x)[0]]
    with v1.Session(graph=graph) as session:
        tool = Collects()
        with amanda.apply(tool):
            session.run(fetches, {x: np.ones(3, np.float32)})
    assert len(tool.backward["Tanh", "TanhGrad"]) == 2


def test_names_of_places():
    places = {}
    tool = amanda.Tool("places")
    tool.add_inst_for_op(lambda c: places.update({c.op.__name__: (c.module_path, c.source, c.op_id)}))

    def run():
        places.clear()
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [3])
            with tf.name_scope("block/inner"):
                y = tf.nn.relu(x)
            z = tf.tanh(y)
        with v1.Session(graph=graph) as session, amanda.apply(tool):
            session.run(z, {x: np.ones(3, np.float32)})
        return dict(places)

    first = run()
    assert first == run()
    assert first["Relu"][0] == "block.inner"
    assert first["Tanh"][0] == ""
    assert first["Relu"][1].startswith(f"{__file__}:")
    assert first["Relu"][2] != first["Tanh"][2]
