"""Executions of the op AmandaTap: exceptions, threads, loops, and runs that routines share."""

import contextlib
import threading

import amanda
import numpy as np
import pytest
import tensorflow as tf
from amanda import _tensorflow
from by_hand_taps import ADD_GRADIENT, Graph, X, Y, before, emit, operator, run_function, taps, tool, translated


class Special(Exception):
    pass


@pytest.mark.parametrize("kind", [Special, KeyboardInterrupt, ZeroDivisionError])
def test_an_exception_arrives_as_itself(run, kind):
    error = kind("in the routine")

    def fail(x, y):
        raise error

    for _ in range(2):
        with pytest.raises(kind) as caught:
            before(run, fail)
        assert caught.value is error
        assert "[amanda] in tool 'tool': fail before taps::Add" in error.__notes__[0]


def test_an_exception_is_raised_once_and_others_pass():
    def fail(x, y):
        raise Special("in the routine")

    with pytest.raises(tf.errors.UnknownError, match=r"\[amanda error \d+\] Special: in the routine") as caught:
        before(lambda build, **feeds: tf.function(build)(**feeds), fail)
    with pytest.raises(Special):
        _tensorflow.raise_error(caught.value.message)
    _tensorflow.raise_error(caught.value.message)
    _tensorflow.raise_error("nothing of ours")
    _tensorflow.raise_error("[amanda error")
    _tensorflow.raise_error("[amanda error 99999999999999999999999]")


def test_many_threads_run_one_node():
    lock, counted, results = threading.Lock(), [], []

    def count(x, y):
        with lock:
            counted.append(threading.get_ident())
        return x + 1, None

    scope = taps(Graph(), tool(lambda c: c.insert_before_op(count)))
    [tap] = scope[1].lowered[0]
    node = _tensorflow.TapNode(operator(), tap.id, [("input", 0, -1), ("input", 1, -1)], [(0, -1), (1, -1)])
    function = tf.function(lambda x, y: tf.add(*emit(node, [x, y], [x.dtype, y.dtype])))
    function(X, Y)

    def work():
        for _ in range(50):
            results.append(function(X, Y).numpy())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counted) == 401
    assert len(results) == 400
    assert all(np.array_equal(result, X + Y + 1) for result in results)


def test_routines_of_one_execution_share_a_run(run):
    seen = []

    def analysis(context):
        context.insert_before_op(lambda x, run: run.update(x=x.sum()), inputs=[0], with_run=True)
        context.insert_after_op(lambda z, run: seen.append(run["x"] + z.sum()), with_run=True)

    _scope, artifact = taps(Graph(), tool(analysis))
    first, second = artifact.lowered[0]
    op = operator()
    nodes = [
        _tensorflow.TapNode(op, first.id, [("input", 0, -1)], []),
        _tensorflow.TapNode(op, second.id, [("output", 0, -1)], []),
    ]

    def build(x, y):
        with tf.control_dependencies([emit(nodes[0], [x], [])]):
            z = x + y
        with tf.control_dependencies([emit(nodes[1], [z], [])]):
            return tf.identity(z)

    run(build, x=X, y=Y)
    run(build, x=2 * X, y=Y)
    assert seen == [10 + 110, 20 + 120]


def test_a_run_that_ends_leaves_those_of_others():
    seen, begun, may_end, ended = [], threading.Event(), threading.Event(), threading.Event()

    def other():
        _tensorflow.begin_run()
        begun.set()
        may_end.wait(120)
        _tensorflow.end_run()
        ended.set()

    def first(x, run):
        run["x"] = float(x.sum())
        may_end.set()
        ended.wait(120)

    def analysis(context):
        context.insert_before_op(first, inputs=[0], with_run=True)
        context.insert_after_op(lambda z, run: seen.append(run["x"]), with_run=True)

    scope, artifact = taps(Graph(), tool(analysis))
    op = operator()
    one, two = (tap.id for tap in artifact.lowered[0])
    nodes = [
        _tensorflow.TapNode(op, one, [("input", 0, -1)], [(0, -1)]),
        _tensorflow.TapNode(op, two, [("output", 0, -1)], [(0, -1)]),
    ]
    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(120)
    run_function(lambda x: emit(nodes[1], emit(nodes[0], [x], [x.dtype]), [x.dtype]), x=X)
    thread.join()
    assert seen == [10]
    with pytest.raises(amanda.Error, match="without begin_run"):
        _tensorflow.end_run()
    del scope


@contextlib.contextmanager
def v1_loops():  # while_loop with the nodes of version 1
    tf.compat.v1.disable_control_flow_v2()
    try:
        yield
    finally:
        tf.compat.v1.enable_control_flow_v2()


def test_the_last_execution_of_a_loop_has_the_first_backward_one():
    seen = []

    def forward(context):
        context.insert_before_op(lambda x, run: run.update(x=float(x)), inputs=[0], with_run=True)

    def backward(context):
        context.insert_before_backward_op(lambda g, run: seen.append((float(g), run["x"])), with_run=True)

    made = tool(forward)
    made.add_inst_for_op(backward, backward=True)
    _scope, artifact = taps(Graph(backward=True), made)
    [[first], [second]] = artifact.lowered[0], artifact.lowered[1]
    op = operator()
    gradient = _tensorflow.Operator("taps/1/graph", ADD_GRADIENT, 8, 1, 2, forward=op)
    nodes = [
        _tensorflow.TapNode(op, first.id, [("input", 0, -1)], [(0, -1)]),
        _tensorflow.TapNode(gradient, second.id, [("input", 0, -1)], [(0, -1)]),
    ]

    def loop(node):
        def body(i):
            [now] = emit(node, [i], [i.dtype])
            now.set_shape(())
            return now + 1

        return tf.compat.v1.while_loop(lambda i: i < 5, body, [tf.constant(0.0)])

    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        with v1_loops(), tf.control_dependencies([loop(nodes[0])]):
            back = loop(nodes[1])
        for _ in range(2):
            translated(lambda: session.run(back))
    assert seen == [(0, 4), (1, 3), (2, 2), (3, 1), (4, 0)] * 2


def test_a_thread_of_tensorflow_keeps_its_thread_state():
    here, seen = threading.local(), []  # what is local to a thread is in its state

    def note(x):
        here.count = getattr(here, "count", 0) + 1
        seen.append(here.count)

    scope, artifact = taps(Graph(), tool(lambda c: c.insert_before_op(note, inputs=[0])))
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(), tap.id, [("input", 0, -1)], [(0, -1)])
    with tf.Graph().as_default() as graph:
        result = tf.identity(emit(node, [tf.constant(X)], [tf.float32])[0])
        config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            for _ in range(5):
                session.run(result)
    assert seen == [1, 2, 3, 4, 5]
    del scope


def test_a_routine_may_run_tensorflow_itself(run):
    calls = []

    def routine(x, y):
        calls.append(x)
        return tf.function(lambda a: a * 2)(x).numpy(), tf.add(y, 1)

    assert np.array_equal(before(run, routine), 2 * X + Y + 1)
    assert len(calls) == 1
