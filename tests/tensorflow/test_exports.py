"""What is exported of a v1 graph in a scope, and after it, is what is exported without tools, byte for byte."""

import amanda
import numpy as np
import pytest
import tensorflow as tf

v1 = tf.compat.v1

X = np.ones((2, 3), np.float32)


@pytest.fixture(autouse=True)
def control_flow_v1():
    was_enabled = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    yield
    if was_enabled:
        v1.enable_control_flow_v2()


class Model:
    """With a variable, a loop, whose contexts are in the collections, and their gradients."""

    def __init__(self):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, [None, 3], name="x")
            w = v1.get_variable("w", initializer=np.ones((3, 3), np.float32))
            _, y = v1.while_loop(
                lambda i, y: i < 2, lambda i, y: (i + 1, tf.matmul(tf.nn.relu(y), w)), [0, self.x], name="loop"
            )
            self.loss = tf.reduce_sum(y)
            v1.summary.scalar("loss", self.loss)
            self.train = v1.train.AdamOptimizer().minimize(self.loss)
            self.saver = v1.train.Saver()
            init = v1.global_variables_initializer()
        self.session = v1.Session(graph=self.graph)
        self.session.run(init)

    def step(self):
        return self.session.run([self.loss, self.train], {self.x: X})[0]


def graph_def(model, folder):
    return model.graph.as_graph_def().SerializeToString(deterministic=True)


def graph_def_with_shapes(model, folder):
    return model.graph.as_graph_def(add_shapes=True).SerializeToString(deterministic=True)


def session_graph_def(model, folder):
    return model.session.graph_def.SerializeToString(deterministic=True)


def meta_graph(model, folder):
    with model.graph.as_default():
        return v1.train.export_meta_graph().SerializeToString(deterministic=True)


def saved_meta_graph(model, folder):
    with model.graph.as_default():
        model.saver.save(model.session, str(folder / "model"))
    return (folder / "model.meta").read_bytes()


def summary(model, folder):
    with model.graph.as_default(), v1.summary.FileWriter(str(folder), model.graph):
        pass
    (path,) = folder.glob("events*")
    events = list(v1.train.summary_iterator(str(path)))
    path.unlink()
    written = [v1.GraphDef.FromString(event.graph_def) for event in events if event.graph_def]
    written += [v1.MetaGraphDef.FromString(event.meta_graph_def) for event in events if event.meta_graph_def]
    return [proto.SerializeToString(deterministic=True) for proto in written]


EXPORTS = [graph_def, graph_def_with_shapes, session_graph_def, meta_graph, saved_meta_graph, summary]


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.__name__)
def test_an_export_is_that_of_the_original(export, tmp_path):
    model = Model()
    vanilla = export(model, tmp_path)
    tool = amanda.Tool("doubles")
    tool.add_inst_for_op(lambda context: context.insert_before_op(lambda x: 2 * x, inputs=[0]), ops="tensorflow::Relu")
    nodes = model.graph.num_operations()
    before = model.session.run(model.loss, {model.x: X})
    with amanda.apply(tool):
        assert model.step() == 4 * before
        assert model.graph.num_operations() > nodes
        assert export(model, tmp_path) == vanilla
    assert export(model, tmp_path) == vanilla


def test_a_graph_that_tools_left_alone_is_exported_as_it_is():
    """Even if it has nodes that are named as ours."""
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="amanda/1/x")
    assert [node.name for node in graph.as_graph_def().node] == ["amanda/1/x"]


def test_what_the_program_adds_later_has_the_same_names():
    model, other = Model(), Model()
    tool = amanda.Tool("doubles")
    tool.add_inst_for_op(lambda context: context.insert_before_op(lambda x: 2 * x, inputs=[0]), ops="tensorflow::Relu")
    with amanda.apply(tool):
        model.step()
    for each in (model, other):
        with each.graph.as_default():
            tf.random.uniform([2], seed=1) + tf.nn.relu(each.loss)
    assert graph_def(model, None) == graph_def(other, None)
