"""Functions that a v1 graph calls, and that run without tools: a copy of them would do something else."""

from __future__ import annotations

import amanda
import numpy as np
import pytest
import tensorflow as tf
from amanda.drivers.tensorflow.front import session as session_front
from amanda.drivers.tensorflow.lower.behind import Behind
from amanda.drivers.tensorflow.lower.changed import Changed
from amanda.drivers.tensorflow.view.called import CalledFunctions
from amanda.drivers.tensorflow.view.op_types import CALLS as CALL_TYPES
from amanda.drivers.tensorflow.view.op_types import draws
from amanda.drivers.tensorflow.view.order import Loops, to_run
from called_models import X, edits, equal
from looking import Look

v1 = tf.compat.v1


def random_numbers(x):
    return x + tf.random.uniform([2, 3], seed=1)


def test_functions_that_draw_random_numbers_are_left_alone_and_counted(caplog, monkeypatch):
    monkeypatch.setattr("amanda.drivers.tensorflow.front.unsupported._unshown._told", [])

    def build():
        graph = tf.Graph()
        with graph.as_default():
            y = tf.nn.relu(tf.function(random_numbers)(tf.function(tf.exp)(tf.constant(X))))
        return v1.Session(graph=graph), y

    (session, y), (other, same) = build(), build()
    vanilla, look = [other.run(same) for _ in range(3)], Look()
    with amanda.apply(look, coverage=True) as scope:
        assert equal([session.run(y) for _ in range(3)], vanilla)
    assert look.count == {"Relu": 3}
    coverage = {row.operator: row.skipped for row in scope.coverage().rows if row.skipped}
    assert {name: reasons.get("graph") for name, reasons in coverage.items()} == {
        "tensorflow::AddV2": 1,
        "tensorflow::RandomUniform": 1,
        "tensorflow::Exp": 1,
    }
    assert [record.getMessage() for record in caplog.records if record.name == "amanda"] == [
        "[tensorflow] a Session runs functions, and tools are not shown the operators in them: random numbers are drawn "
        "behind them, which a copy would change",
        "[tensorflow] a Session runs functions, and tools are not shown the operators in them: they draw random numbers, "
        "and a copy would draw others; use tf.random.stateless_uniform or the like",
    ]


def in_frames(make):
    v1.disable_control_flow_v2()
    try:
        return make()
    finally:
        v1.enable_control_flow_v2()


def drawn_with_an_effect(x):
    """The original that draws needs a print."""
    with tf.control_dependencies([v1.Print(x, [x])]):
        return tf.random.uniform(tf.shape(x)) + x


def drawn_in_a_loop(x):
    return in_frames(
        lambda: tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, a + tf.random.uniform([2, 3])), [0, x])[1]
    )


BEHIND = {
    "nothing": lambda x: tf.exp(x),
    "random numbers": lambda x: x + tf.random.uniform([2, 3]),
    "random numbers of a shape": lambda x: tf.random.uniform(tf.shape(x)),
    "an effect before random numbers": lambda x: tf.random.uniform(tf.shape(v1.Print(x, [x]))),
    "an effect after random numbers": lambda x: v1.Print(x + tf.random.uniform(tf.shape(x)), [x]),
    "a control edge": drawn_with_an_effect,
    "random numbers in a loop": drawn_in_a_loop,
    "a function with random numbers": lambda x: tf.function(random_numbers)(x),
    "random numbers, and a function with others": lambda x: tf.function(random_numbers)(x + tf.random.uniform([2, 3])),
}


@pytest.mark.parametrize("name", BEHIND)
@pytest.mark.parametrize("is_fed", [False, True], ids=["", "fed"])
def test_the_calls_whose_copies_draw_others_are_those_with_such_operators_behind_them(name, is_fed):
    """For each call alone, `Changed` finds what is copied with it."""
    with tf.Graph().as_default() as graph:
        function = tf.function(tf.nn.relu)
        first = function(v1.placeholder_with_default(X, [None, 3]))  # of a shape that is not known
        middle = BEHIND[name](function(first))
        last = function(tf.cond(tf.reduce_sum(middle) > 0, lambda: middle, lambda: -middle))
        side = function(tf.constant(X))
        fed = frozenset([id(middle)] if is_fed else [])
        operators = to_run([last.op, side.op], fed)
    called = CalledFunctions(graph, operators)

    def by_changed(op):
        copied = Changed(operators, [], {}, fed, Loops(operators), [op]).found
        return any(draws(each) or called.keeps_state(each) for each in copied)

    behind = Behind(operators, fed, called.keeps_state)
    calls = [op for op in operators if op.type in CALL_TYPES and not called.keeps_state(op)]
    assert len(calls) == (3 if is_fed else 5)
    assert [behind.draws(op) for op in calls] == [by_changed(op) for op in calls]
    left_alone = {"nothing", "random numbers", "random numbers of a shape", "an effect after random numbers"}
    assert any(map(by_changed, calls)) == (not is_fed and name not in left_alone)


@pytest.mark.parametrize(("asked", "is_searched"), [("Tanh", False), ("Exp", True)])
def test_what_is_behind_calls_is_searched_only_if_a_tool_asks_for_an_operator_in_them(monkeypatch, asked, is_searched):
    made = []
    monkeypatch.setattr(session_front, "Behind", lambda *given: made.append(given) or Behind(*given))
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        y = tf.tanh(tf.function(tf.exp)(tf.constant(X)) + tf.random.uniform([2, 3]))
        with amanda.apply(Look(f"tensorflow::{asked}")) as look:
            session.run(y)
    assert (look.count, len(made)) == ({asked: 1}, int(is_searched))


def test_no_warning_about_functions_that_have_no_operator_that_a_tool_asks_for(caplog, monkeypatch):
    monkeypatch.setattr("amanda.drivers.tensorflow.front.unsupported._unshown._told", [])
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        y = tf.nn.relu(tf.function(random_numbers)(tf.constant(X)))
        with amanda.apply(edits("Relu", lambda y: y + 1)):
            session.run(y)
    assert [record for record in caplog.records if record.name == "amanda"] == []


def test_functions_that_xla_compiles_are_left_alone(caplog):
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        y = tf.nn.relu(tf.function(tf.exp, jit_compile=True)(tf.constant(X)))
        vanilla, look = session.run(y), Look()
        with amanda.apply(look):
            assert np.array_equal(session.run(y), vanilla)
    assert look.count == {"Relu": 1}
    assert "XLA compiles them; use jit_compile=False" in caplog.text
