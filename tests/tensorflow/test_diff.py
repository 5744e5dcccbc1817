"""Recorder and CausalDiff on TensorFlow's programs: planted faults are found, and what cannot be read is told."""

import amanda
import numpy as np
import pytest
import tensorflow as tf
from amanda.driver import protocol, registry
from amanda.tools.diff import CausalDiff, RecordDiff, Recorder

v1 = tf.compat.v1


def recorded(folder, run):
    with Recorder(folder) as recorder, amanda.apply(recorder):
        run()
    return folder


def compared(folder, run, **tolerances):
    diff = CausalDiff(folder, **tolerances)
    with amanda.apply(diff):
        result = run()
    return diff, result


def causes(diff):
    return [(row.kind, row.name, row.backward_op, row.note) for row in diff.rows()]


def function(scale=2.0, dtype=tf.float32):
    def run():
        @tf.function
        def program(x):
            hidden = tf.nn.relu(tf.cast(x, dtype) * scale)
            return tf.reduce_sum(tf.exp(hidden))

        return program(tf.constant([[1.0, -2.0], [3.0, 0.5]]))

    return run


def session(scale=2.0):
    def run():
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [2])
            return session.run(tf.reduce_sum(tf.exp(tf.nn.relu(x) * scale)), {x: [1.0, 2.0]})

    return run


def eager(scale=2.0):
    return lambda: tf.reduce_sum(tf.exp(tf.nn.relu(tf.constant([1.0, 2.0])) * scale))


@pytest.mark.parametrize("program", [function, session, eager])
def test_a_planted_fault_is_found_and_nothing_else(program, tmp_path):
    expected = np.array(program()())
    folder = recorded(tmp_path / "r", program())
    same, _ = compared(folder, program())
    assert not same.differs
    assert same.summary == "0 differences in 4 operators, 4 results, forward"
    other, result = compared(folder, program(3.0))
    assert causes(other) == [("operator", "tensorflow::Mul", "", "y: 2.0 -> 3.0")]
    if program is not eager:  # whose results cannot be replaced
        assert np.array_equal(np.array(result), expected), "it is the reference's"
    (row,) = other.rows()
    assert row.elements > 0
    assert row.max_rel == pytest.approx(0.5)
    again = recorded(tmp_path / "again", program(3.0))
    assert causes(RecordDiff(folder, again)) == causes(other)


def test_narrow_types_are_stored_bit_by_bit(tmp_path):
    folder = recorded(tmp_path / "r", function(dtype=tf.bfloat16))
    same, _ = compared(folder, function(dtype=tf.bfloat16))
    assert same.summary.startswith("0 differences in 5 operators, 5 results")
    other, _ = compared(folder, function(2.015625, dtype=tf.bfloat16))
    assert [row[:2] for row in causes(other)] == [("input", "tensorflow::Mul")]
    assert [(row.dtype, row.max_rel) for row in other.rows()] == [("bfloat16", 0.0625 / 6)], "it is rounded to 1/16"
    close, _ = compared(folder, function(2.015625, dtype=tf.bfloat16), close=True)
    assert not close.differs
    assert "of them within the tolerances" in close.summary


def test_strings_are_counted_and_told(tmp_path):
    def run():
        tf.strings.length(tf.strings.join(["a", "b"]))

    diff, _ = compared(recorded(tmp_path / "r", run), run)
    assert not diff.differs
    unshown = "a value that the framework does not show, such as a string of TensorFlow"
    assert diff.not_compared == [f"1 result that could not be read (1: {unshown})"]
    assert diff.summary.startswith("no difference in what was compared (2 operators, 1 result, forward)")


def train(rate=0.5, boost=1.0):
    def run():
        weight = tf.Variable([[1.0, 2.0], [0.5, 0.1]], name="weight")

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(tf.matmul(x, weight)) * boost)
            weight.assign_sub(rate * tape.gradient(loss, weight))
            return loss

        for _ in range(2):
            step(tf.constant([[1.0, -2.0]]))

    return run


def test_train_steps_and_what_a_variable_gets(tmp_path):
    folder = recorded(tmp_path / "r", train())
    same, _ = compared(folder, train())
    assert not same.differs
    assert "forward and backward" in same.summary
    other, _ = compared(folder, train(rate=0.25))
    assert causes(other) == [("operator", "tensorflow::Mul", "", "x: 0.5 -> 0.25")], "and the variables agree"
    boosted, _ = compared(folder, train(boost=3.0))
    assert causes(boosted)[0] == ("operator", "tensorflow::Mul", "", "y: 1.0 -> 3.0")


def test_what_runs_unseen_is_told(tmp_path, monkeypatch):
    from amanda.drivers.tensorflow.front import unsupported

    monkeypatch.setattr(unsupported._unshown, "_told", [])

    def run():
        tf.function(lambda x: tf.exp(x), jit_compile=True)(tf.constant([1.0]))
        tf.nn.relu(tf.constant([1.0]))

    diff, _ = compared(recorded(tmp_path / "r", run), run)
    assert not diff.differs
    assert any(
        "1 function ran without tools: a function with jit_compile=True" in part for part in diff.not_compared
    ), diff.not_compared


def test_the_driver_says_what_routines_can_do_with_results():
    def access(mode, name):
        found = registry.access_to(f"tensorflow/2.20/{mode}", name)
        return found.can_replace, found.hides_values, found.hides_inputs, found.shows_both

    assert access("eager", "Relu") == (False, True, True, True)
    assert access("function", "Relu") == (True, True, True, True)
    assert access("graph", "VarHandleOp") == (True, False, True, True)
    assert registry.access_to("reference", "relu") == protocol.Access(shows_both=False)


def test_what_tensorflow_does_not_show_may_be_the_cause(tmp_path):
    def run(scale=1.0):
        def scaled(x):
            return x * scale

        for value in tf.data.Dataset.from_tensor_slices([1.0, 2.0]).map(scaled):
            value + 1.0

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    for scale, expected in ((1.0, []), (3.0, [("input not compared", "tensorflow::IteratorGetNext")])):
        diff = CausalDiff(tmp_path / "r")
        with amanda.apply(diff):
            run(scale)
        assert [(row.kind, row.name) for row in diff.rows()][:1] == expected
