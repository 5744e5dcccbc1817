"""NaNSentinel on TensorFlow: functions, sessions and eager operators."""

from __future__ import annotations

import inspect
import warnings

import amanda
import numpy as np
import pytest
import tensorflow as tf
from amanda.cli.main import main
from amanda.tools.nonfinite import NaNSentinel, NonfiniteError, NonfiniteWarning

v1 = tf.compat.v1


def log_of(x):
    return tf.reduce_sum(tf.math.log(tf.nn.relu(x) - 1.0) * 2.0)  # NaN where x < 1


def in_session(x):
    with tf.Graph().as_default() as graph:
        y = log_of(tf.constant(x.numpy()))
    with v1.Session(graph=graph) as session:
        return session.run(y)


REGIMES = {"function": tf.function(log_of), "eager": log_of, "session": in_session}
regimes = pytest.mark.parametrize("run", [pytest.param(run, id=name) for name, run in REGIMES.items()])
X = tf.constant([0.5, 3.0])


@regimes
def test_the_operator_that_made_it_is_named(run):
    sentinel = NaNSentinel()
    with pytest.raises(NonfiniteError) as caught, amanda.apply(sentinel):
        run(X)
    found = caught.value.finding
    assert sentinel.findings() == [found]
    assert (found.name, found.kind, found.phase) == (
        "tensorflow::Log",
        "produced",
        "forward",
    )
    assert int(found.source.rpartition(":")[2]) == inspect.getsourcelines(log_of)[1] + 1
    assert [operand.name for operand in (*found.outputs, *found.inputs)] == ["output 0", "input x"]
    assert (found.outputs[0].nans, found.inputs[0].min, found.inputs[0].max) == (1, -0.5, 2.0)
    assert found.cause == "input x is negative"
    assert "tensorflow::Log produced the first NaN" in str(caught.value)


@regimes
def test_what_others_made_of_it_is_counted(run):
    sentinel = NaNSentinel(action="warn")
    with warnings.catch_warnings(record=True) as told, amanda.apply(sentinel):
        warnings.simplefilter("always", NonfiniteWarning)
        result = run(X)
    np.testing.assert_equal(np.isnan(result), True)
    assert [one.name for one in sentinel.findings()] == ["tensorflow::Log"]
    assert sentinel.propagated == 2  # Mul and Sum
    assert len([one for one in told if one.category is NonfiniteWarning]) == 1


@regimes
def test_a_finite_program_computes_the_same_and_finds_nothing(run):
    x, sentinel = X + 2.0, NaNSentinel(inf=True)
    vanilla = np.asarray(run(x))
    with amanda.apply(sentinel):
        inside = np.asarray(run(x))
    assert inside.tobytes() == vanilla.tobytes()
    assert sentinel.findings() == []
    assert sentinel.propagated == 0


def gradient_of_root(x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_mean(tf.sqrt(tf.reduce_sum((x - y) ** 2.0, -1)))
    return tape.gradient(loss, x)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
@pytest.mark.parametrize("inf", [True, False])
def test_a_gradient(wrap, inf):
    """That of the root of 0 is infinite, and 0 times it is NaN."""
    sentinel = NaNSentinel(inf=inf)
    with pytest.raises(NonfiniteError) as caught, amanda.apply(sentinel):
        wrap(gradient_of_root)(tf.zeros((2, 3)), tf.zeros((2, 3)))
    found, line = caught.value.finding, inspect.getsourcelines(gradient_of_root)[1] + 3
    assert (found.phase, found.kind) == ("backward", "produced")
    assert int(found.source.rpartition(":")[2]) == line
    if inf:
        assert (found.backward_op, found.name) == ("SqrtGrad", "tensorflow::Sqrt")
        assert len(found.chain) == 1
    else:
        assert found.name == "tensorflow::Pow"
        assert [(link.name, link.backward_op) for link in found.chain][:1] == [("tensorflow::Sqrt", "SqrtGrad")]
        assert (found.chain[0].source, found.chain[0].cause) == (f"{__file__}:{line}", "forward output 0 is zero")
        assert f":{line}), backward: forward output 0 is zero" in str(caught.value).splitlines()[0]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64, tf.complex64])
def test_every_floating_dtype(dtype):
    function = tf.function(lambda x: tf.concat([x, x - x], 0) / tf.cast([0, 1], dtype))  # 0 / 0
    with pytest.raises(NonfiniteError) as caught, amanda.apply(NaNSentinel()):
        function(tf.zeros((1,), dtype))
    assert caught.value.finding.name == "tensorflow::RealDiv"
    assert caught.value.finding.outputs[0].dtype == dtype.name
    assert caught.value.finding.outputs[0].nans == 1


def test_a_variable_that_held_it():
    w = tf.Variable([[1.0], [np.nan]], name="kernel")
    function = tf.function(lambda x: tf.nn.relu(x @ w))
    with pytest.raises(NonfiniteError) as caught, amanda.apply(NaNSentinel()):
        function(tf.ones((1, 2)))
    assert (caught.value.finding.kind, caught.value.finding.parameter) == ("given", "kernel")
    assert "the first NaN was in parameter 'kernel'; tensorflow::MatMul passed it on" in str(caught.value)


def test_what_a_function_is_given_was_made_by_the_caller():
    """Whatever the order in which routines run: nothing is said to be given that an operator made."""
    inner = tf.function(lambda x: tf.concat([x * 2.0, x], 0))
    outer = tf.function(lambda x: inner(tf.math.log(x)))
    for _ in range(5):
        sentinel = NaNSentinel()
        with pytest.raises(NonfiniteError), amanda.apply(sentinel):
            outer(tf.constant([-1.0]))
        assert [(one.name, one.kind) for one in sentinel.findings()] == [("tensorflow::Log", "produced")]


def test_in_a_loop():
    function = tf.function(lambda x: tf.while_loop(lambda x: tf.reduce_any(x == x), lambda x: [tf.sqrt(x - 1.0)], [x]))
    with pytest.raises(NonfiniteError) as caught, amanda.apply(NaNSentinel()):
        function(tf.constant([3.0]))
    assert caught.value.finding.name == "tensorflow::Sqrt"


def test_the_command(tmp_path, capsys):
    program = tmp_path / "p.py"
    program.write_text(
        "import tensorflow as tf\nf = tf.function(lambda x: tf.math.log(x) + 1.0)\nf(tf.constant(-1.0))\nprint('on')\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["nan", str(program)])
    told = capsys.readouterr()
    assert ended.value.code == 1
    assert "tensorflow::Log produced the first NaN" in told.err
    assert "p.py:2" in told.err
    assert "NaN: 1 operator produced some" in told.out
    assert "on" not in told.out


def test_the_command_says_of_a_program_that_failed_that_it_did(tmp_path, capsys):
    program = tmp_path / "p.py"
    program.write_text("raise ValueError('no data')\n")
    with pytest.raises(SystemExit) as ended:
        main(["nan", str(program)])
    assert ended.value.code == 3
    assert capsys.readouterr().out == "\nno NaN was produced until the program failed, in 0 results of 0 operators\n"


def test_what_a_data_pipeline_made_is_not_said_to_be_made_by_what_takes_it():
    def root(x):
        return tf.sqrt(x)

    data = tf.data.Dataset.from_tensor_slices([1.0, -1.0]).map(root)
    with pytest.raises(NonfiniteError) as caught, amanda.apply(NaNSentinel()):
        list(data.as_numpy_iterator())
    found = caught.value.finding
    assert (found.name, found.kind, found.unread) == (
        "tensorflow::IteratorGetNext",
        "unread",
        "the data pipeline, whose operators are shown to no tool",
    )


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_what_tensorflow_does_not_show_may_have_held_it(wrap):
    table = tf.Variable([[1.0], [np.nan]])
    sentinel = NaNSentinel()
    with pytest.raises(NonfiniteError) as caught, amanda.apply(sentinel):
        wrap(lambda: tf.gather(table, [1]))()
    assert caught.value.finding.kind == "unread"
    assert caught.value.finding.unread.startswith("input resource, which could not be read (a value that the framework")
    assert sentinel.skipped == {"unshown": 1}
