"""Functions that no tool asks for anything in: a scope runs the trace that is there."""

from __future__ import annotations

import amanda
import numpy as np
import pytest
import tensorflow as tf
from function_tools import values

X = tf.constant([[1.0, -2.0, 3.0]])


def plain(traces):
    def function(x):
        traces.append("function")
        return tf.tanh(x) * 2.0

    return tf.function(function)


def nested(traces):
    inner = plain(traces)
    return tf.function(lambda x: inner(x) + 1.0)


def loop(traces):
    def function(x):
        traces.append("function")
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.tanh(x)), (0, x))[1]

    return tf.function(function)


def branch(traces):
    def function(x):
        traces.append("function")
        return tf.cond(x[0, 0] > 0.0, lambda: tf.tanh(x), lambda: x)

    return tf.function(function)


def gradient(traces):
    def function(x):
        traces.append("function")
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x)
        return tape.gradient(y, x)

    return tf.function(function)


def nested_gradient(traces):
    inner = plain(traces)

    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = inner(x)
        return tape.gradient(y, x)

    return tf.function(function)


PROGRAMS = [plain, nested, loop, branch, gradient, nested_gradient]


def vectorized(traces):
    def function(x):
        traces.append("function")
        return tf.vectorized_map(tf.tanh, x)

    return tf.function(function)


def asking(ops, ran, **options):
    """Notes that its operator ran."""
    tool = amanda.Tool("asking")
    schedule = "insert_after_backward_op" if options.get("backward") else "insert_after_op"
    tool.add_inst_for_op(lambda context: getattr(context, schedule)(lambda *_: ran.append(ops)), ops=ops, **options)
    return tool


def nobody(ran, **options):
    return asking("Betainc", ran, optional=True, **options)


@pytest.mark.parametrize("make", PROGRAMS)
@pytest.mark.parametrize("backward", [False, True])
def test_it_is_not_traced_again(make, backward):
    traces, ran = [], []
    function = make(traces)
    outside, count = values(function(X)), len(traces)
    for _ in range(2):
        with amanda.apply(nobody(ran, backward=backward)):
            assert values(function(X)) == values(function(X)) == outside
    assert values(function(X)) == outside
    assert len(traces) == count
    assert not ran


@pytest.mark.parametrize("make", [*PROGRAMS, vectorized])
def test_a_tool_sees_what_it_asks_for_wherever_it_is(make):
    function, ran = make([]), []
    outside = values(function(X))
    with amanda.apply(nobody([])):
        function(X)
    with amanda.apply(asking("Tanh", ran)):
        assert values(function(X)) == outside
    assert ran == ["Tanh"] * (3 if make is loop else 1)


@pytest.mark.parametrize("make", [gradient, nested_gradient])
def test_a_tool_sees_gradients_that_it_asks_for(make):
    function, ran = make([]), []
    function(X)
    with amanda.apply(asking("Tanh", ran, backward=True)):
        function(X)
    assert ran == ["Tanh"]


def test_a_tool_that_asks_later_sees_it():
    function, ran, tool = plain([]), [], nobody([])
    function(X)
    with amanda.apply(tool):
        function(X)
        tool.add_inst_for_op(lambda context: context.insert_after_op(lambda *_: ran.append("Tanh")), ops="Tanh")
        function(X)
    assert ran == ["Tanh"]


def test_a_function_under_a_tape_is_traced_for_the_tools():
    """The tape's gradients are other graphs, whose operators the function's own may lack."""
    traces = []
    function, scope = plain(traces), amanda.apply(nobody([]))

    def differentiated():
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = function(X)
        return tape.gradient(y, X)

    outside = differentiated()
    counts = []
    with scope:
        for run in (function, lambda _: differentiated(), function, lambda _: differentiated()):
            run(X)
            counts.append(len(traces))
        inside = differentiated()
    np.testing.assert_array_equal(inside, outside)
    assert counts == [1, 2, 2, 2]


def test_coverage_counts_its_operators():
    function = plain([])
    function(X)
    with amanda.apply(nobody([]), coverage=True) as scope:
        function(X)
    assert "Tanh" in str(scope.coverage())


def test_random_numbers_go_on():
    def drawn(scope):
        tf.random.set_seed(1)
        function = tf.function(lambda: tf.random.uniform([2]))
        first = function().numpy()
        if scope is None:
            return first, function().numpy()
        with scope:
            return first, function().numpy()

    np.testing.assert_array_equal(drawn(amanda.apply(nobody([]))), drawn(None))
