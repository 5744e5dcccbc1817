"""What only TensorFlow has: edges through loops and conditionals, bfloat16, tools that need PyTorch's modules."""

import amanda
import numpy as np
import pytest
import tensorflow as tf
from amanda.research.error_injection import BitFlip, ErrorInjection
from amanda.tools.graph import GraphTracing
from amanda.tools.histograms import ValueHistograms
from amanda.tools.hook_coverage import HookCoverage
from amanda.tools.profile import Profile
from amanda.tools.statistics import OpStatistics

v1 = tf.compat.v1


@pytest.fixture
def frames():
    """Loops and conditionals are nodes of the graph itself, as in TensorFlow 1."""
    v2 = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    yield
    if v2:
        v1.enable_control_flow_v2()


def edges(tracing):
    def name(node):
        return node.name.rpartition("::")[2] if node.kind == "operator" else node.kind

    return {(name(made), name(node)) for node in tracing.graph for made in tracing.graph.producers(node)}


def test_edges_around_a_loop_of_a_session(frames):
    with tf.Graph().as_default(), v1.Session() as session:
        x, w = v1.placeholder(tf.float32, [3]), v1.get_variable("w", initializer=np.float32([2, 2, 2]))
        _, y = v1.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.nn.relu(y * w)), (0, tf.negative(x)))
        z = tf.exp(y)
        session.run(v1.global_variables_initializer())
        tracing = GraphTracing()
        with amanda.apply(tracing):
            session.run(z, {x: [-1.0, 0.5, 0.0]})
    expected = {("input", "Neg"), ("Neg", "Mul"), ("parameter", "Mul"), ("Mul", "Relu"), ("Relu", "Mul")}
    expected |= {("Relu", "Exp"), ("Neg", "Exp")}  # it may run no round
    assert edges(tracing) == expected | {("AddV2", "AddV2"), ("AddV2", "Less")}


@pytest.mark.parametrize("taken", [True, False])
def test_edges_of_the_branch_that_a_session_takes(frames, taken):
    with tf.Graph().as_default(), v1.Session() as session:
        x, choice = v1.placeholder(tf.float32, [3]), v1.placeholder(tf.bool, [])
        y = tf.negative(x)
        z = tf.exp(v1.cond(choice, lambda: tf.nn.relu(y), lambda: tf.sin(y)))
        tracing = GraphTracing()
        with amanda.apply(tracing):
            session.run(z, {x: [1.0, 2.0, 3.0], choice: taken})
    branch = "Relu" if taken else "Sin"
    assert edges(tracing) == {("input", "Neg"), ("Neg", branch), (branch, "Exp")}


def test_edges_around_a_conditional_of_a_function():
    w = tf.Variable([2.0, 2.0])

    @tf.function
    def program(x):
        y = tf.negative(x)
        y = tf.nn.relu(y) * w if tf.reduce_sum(y) > 0 else tf.sin(y)
        return tf.exp(y)

    tracing = GraphTracing()
    with amanda.apply(tracing):
        program(tf.constant([-1.0, -2.0]))
    found = edges(tracing)
    assert found >= {
        ("input", "Neg"),
        ("Neg", "Sum"),
        ("Sum", "Greater"),
        ("Neg", "Relu"),
        ("Relu", "Mul"),
        ("Mul", "Exp"),
    }
    assert ("parameter", "Mul") in found
    assert "Sin" not in {node for edge in found for node in edge}


def test_edges_out_of_a_loop_of_a_function():
    @tf.function
    def program(x):
        y = tf.negative(x)
        for _ in tf.range(3):
            y = tf.nn.relu(y * 2.0)
        return tf.exp(y)

    tracing = GraphTracing()
    with amanda.apply(tracing):
        program(tf.constant([-1.0, -2.0]))
    found = edges(tracing)
    assert found >= {("input", "Neg"), ("Mul", "Relu"), ("Relu", "Mul"), ("Relu", "Exp"), ("Neg", "Exp")}


def test_one_variable_is_one_node():
    w = tf.Variable([2.0, 2.0])

    @tf.function
    def program(x):
        return tf.exp(x * w) + w

    tracing = GraphTracing(once=True)
    with amanda.apply(tracing):
        program(tf.constant([-1.0, -2.0]))
        program(tf.constant([-1.0, -2.0]))
    (parameter,) = (node for node in tracing.graph if node.kind == "parameter")
    assert {node.name for node in tracing.graph.consumers(parameter)} == {"tensorflow::Mul", "tensorflow::AddV2"}


def test_what_runs_eagerly_has_no_edges(caplog):
    tracing = GraphTracing()
    with amanda.apply(tracing):
        tf.exp(tf.constant([1.0]))
    assert [node.name for node in tracing.graph] == ["tensorflow::Exp"]
    assert edges(tracing) == set()
    assert tracing.skipped == {"untraced": 1}
    assert "does not tell which operator made it (tensorflow/2.21/eager)" in caplog.text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_types(dtype):
    dtype = tf.as_dtype(dtype)
    values = np.array([[0.0, -1.5, 3.0], [2.0, 0.25, -8.0]])
    x = tf.cast(values, dtype)

    @tf.function
    def program(x):
        return tf.reshape(x, [3, 2])

    statistics, histograms, profile = OpStatistics(), ValueHistograms(), Profile()
    injection = ErrorInjection(BitFlip(), ops="Reshape", count=2, seed=3)
    with amanda.apply(statistics, histograms, profile, injection):
        found = program(x).numpy()
    (row,) = [row for row in statistics.rows() if row.name == "tensorflow::Reshape"]
    expected = values.reshape(3, 2)
    assert (row.elements, row.zeros, row.min, row.max) == (6, 1, -8.0, 3.0)
    assert row.mean == pytest.approx(expected.mean())
    assert sum(histograms.rows()[0].counts) == 5
    assert profile.rows()[0].output_bytes == 6 * dtype.size
    bits = expected.astype(dtype.as_numpy_dtype)
    for fault in injection.rows():
        before = float(bits[fault.index])
        bits.view(f"i{dtype.size}")[fault.index] ^= np.array(1).astype(f"i{dtype.size}") << fault.bit
        after = float(bits[fault.index])
        assert (fault.before, fault.after) == (before, pytest.approx(after, nan_ok=True))
    assert len(injection.rows()) == 2
    np.testing.assert_array_equal(found.view(f"i{dtype.size}"), bits.view(f"i{dtype.size}"))


def test_coverage_needs_modules():
    with pytest.raises(TypeError, match=r"\[hook_coverage\] HookCoverage takes a torch.nn.Module, .*; amanda.apply\("):
        HookCoverage(lambda x: x)
