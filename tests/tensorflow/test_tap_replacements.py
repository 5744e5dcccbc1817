"""The op AmandaTap in place of an operator: results of replacements, and the original that they may run."""

import gc

import amanda
import numpy as np
import pytest
import tensorflow as tf
from amanda import _tensorflow
from by_hand_taps import SPLIT, Graph, X, Y, emit, operator, taps, tool, translated


def replacement(run, routine, outer=None, shapes=()):
    """The result of a replacement of x + y, and how often the original ran. `routine`: of a context."""
    tools = [tool(lambda c: c.replace_op(routine(c)))]
    if outer:
        tools.append(tool(lambda c: c.replace_op(outer(c)), name="outer"))
        tools[1].depends_on(tools[0])
    scope, artifact = taps(Graph(), *tools)
    [tap] = artifact.lowered[0]
    calls = []

    def add(x, y):
        calls.append((x, y))
        return np.add(x, y)

    args = [("input", 0, -1), ("input", 1, -1)]
    node = _tensorflow.TapNode(operator(), tap.id, args, [(0, -1)], original=add, shapes=list(shapes))
    result = run(lambda x, y: emit(node, [x, y], [x.dtype])[0], x=X, y=Y)
    del scope
    return result, len(calls)


def test_a_replacement_returns_the_results(run):
    result, calls = replacement(run, lambda c: lambda x, y: x - y)
    assert np.array_equal(result, X - Y)
    assert calls == 0


def test_a_replacement_can_run_the_original(run):
    result, calls = replacement(run, lambda c: lambda x, y, op=c.op: op(x, op(x, y)) * 2)
    assert np.array_equal(result, 2 * (2 * X + Y))
    assert calls == 2


def test_replacements_nest(run):
    result, calls = replacement(
        run, lambda c: lambda x, y, op=c.op: op(x, y) * 2, lambda c: lambda x, y, op=c.op: -op(x, y)
    )
    assert np.array_equal(result, -2 * (X + Y))
    assert calls == 1


def test_without_its_scope_a_replacement_runs_the_original(run):
    scope, artifact = taps(Graph(), tool(lambda c: c.replace_op(lambda x, y: x)))
    [tap] = artifact.lowered[0]
    args = [("input", 0, -1), ("input", 1, -1)]
    node = _tensorflow.TapNode(operator(), tap.id, args, [(0, -1)], original=np.add)
    del scope
    gc.collect()
    assert np.array_equal(run(lambda x, y: emit(node, [x, y], [x.dtype])[0], x=X, y=Y), X + Y)


@pytest.mark.parametrize(
    ("routine", "shapes", "reason"),
    [
        (lambda x, y: x.astype(np.int32), (), r"result 0: int32 \[2, 2\] where float32 is needed"),
        (lambda x, y: x[:1], ([None, 2],), None),
        (lambda x, y: x[:, :1], ([None, 2],), r"result 0: float32 \[2, 1\] where float32 \[\?, 2\] is needed"),
        (lambda x, y: x[0], ([2, 2],), r"result 0: float32 \[2\] where float32 \[2, 2\] is needed"),
        (lambda x, y: None, (), "it returned None; a replacement returns the operator's result"),
    ],
)
def test_results_of_a_replacement_fit_the_graph(run, routine, shapes, reason):
    if reason is None:
        assert replacement(run, lambda c: routine, shapes=shapes)[0].shape == (1, 2)
        return
    with pytest.raises(amanda.Error, match=r"tool: <lambda> replacing taps::Add in net.add.*: " + reason):
        replacement(run, lambda c: routine, shapes=shapes)


def test_the_original_of_a_node_that_is_gone_is_an_error():
    scope, artifact = taps(Graph(), tool(lambda c: c.replace_op(lambda x, y, op=c.op: op(x, y))))
    [tap] = artifact.lowered[0]
    args = [("input", 0, -1), ("input", 1, -1)]
    node = _tensorflow.TapNode(operator(), tap.id, args, [(0, -1)], original=np.add)
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        result = emit(node, [tf.constant(X), tf.constant(Y)], [tf.float32])[0]
        assert np.array_equal(session.run(result), X + Y)
        del node  # the kernel lives on
        gc.collect()
        with pytest.raises(amanda.Error, match="the original of Add is gone"):
            translated(lambda: session.run(result))
    del scope


def test_a_replacement_returns_a_list(run):
    _scope, artifact = taps(
        Graph(SPLIT, ("axis", "value"), (["a", "b"],)), tool(lambda c: c.replace_op(lambda axis, v: [v, -v]))
    )
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(SPLIT), tap.id, [("input", 0, -1), ("input", 1, -1)], [(0, 0), (0, 1)])
    results = run(lambda axis, x: emit(node, [axis, x], [x.dtype, x.dtype]), axis=np.int32(0), x=X)
    assert np.array_equal(results, [X, -X])
