"""The op AmandaTap: what reaches routines from a running graph, and what they return to it. No front is used: nodes are
made by hand, in a graph of version 1 and in a function."""

import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import amanda
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from amanda import _tensorflow
from by_hand_taps import (
    ADD,
    ADD_GRADIENT,
    CONCAT,
    SPLIT,
    Graph,
    emit,
    operator,
    run_function,
    run_v1,
    taps,
    tool,
    translated,
)


def test_this_tensorflow_has_all_functions():
    assert _tensorflow.check() == []


@pytest.fixture(params=[run_v1, run_function], ids=["v1", "function"])
def run(request):
    return request.param


X, Y = np.float32([[1, 2], [3, 4]]), np.float32([[10, 20], [30, 40]])


def before(run, routine, x=X, y=Y, *, results=((0, -1), (1, -1)), inputs=None, scope=None, **options):
    """x + y with a tap before it that returns `results`; None for a result that the tap does not return."""
    _scope, artifact = scope or taps(Graph(), tool(lambda c: c.insert_before_op(routine, inputs=inputs, **options)))
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(), tap.id, [("input", 0, -1), ("input", 1, -1)], list(results))

    def build(x, y):
        now = {0: x, 1: y}
        made = emit(node, [x, y], [now[position].dtype for position, _ in results])
        if not results:
            with tf.control_dependencies([made]):
                return x + y
        now |= {position: value for (position, _), value in zip(results, made, strict=True)}
        return now[0] + now[1]

    return run(build, x=x, y=y)


def test_a_routine_gets_read_only_arrays_of_the_operands(run):
    seen = []
    result = before(run, lambda x, y: seen.append((x, y)), results=())
    [(x, y)] = seen
    assert isinstance(x, np.ndarray)
    assert np.array_equal(x, X)
    assert np.array_equal(y, Y)
    assert x.dtype == np.float32
    assert not x.flags.writeable
    assert not x.flags.owndata
    assert np.array_equal(result, X + Y)
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 0


def test_an_array_is_good_after_the_session(run):
    seen = []
    before(run, lambda x, y: seen.append(x), results=())
    gc.collect()
    np.random.default_rng(0).random(1000)
    assert np.array_equal(seen[0], X)


def test_what_a_routine_returns_takes_the_place_of_the_operand(run):
    assert np.array_equal(before(run, lambda x: x * 2, inputs=["x"]), 2 * X + Y)
    assert np.array_equal(before(run, lambda x, y: (None, y * 3)), X + 3 * Y)
    assert np.array_equal(before(run, lambda x, y: (y, x.T)), Y + X.T)  # not in the order of memory
    assert np.array_equal(before(run, lambda x, y: None), X + Y)
    assert np.array_equal(before(run, lambda x, y: (x, y)), X + Y)


def test_an_edit_is_a_copy(run):
    kept = np.zeros((2, 2), np.float32)

    def keep(x):
        kept[:] = x * 2
        return kept

    def spoil(x):
        kept[:] = -1
        return x

    scope = taps(
        Graph(),
        tool(lambda c: c.insert_before_op(keep, inputs=[0])),
        tool(lambda c: c.insert_before_op(spoil, inputs=[0])),
    )
    assert np.array_equal(before(run, None, scope=scope), 2 * X + Y)


def test_a_routine_sees_the_edits_of_those_before_it(run):
    tools = [tool(lambda c, n=n: c.insert_before_op(lambda x: x * n, inputs=[0]), name=f"times{n}") for n in (2, 5)]
    assert np.array_equal(before(run, None, scope=taps(Graph(), *tools)), 10 * X + Y)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda x: x.astype(np.float64), r"input 0 \(x\): float64 \[2, 2\] where float32 \[2, 2\] is needed"),
        (lambda x: x[0], r"input 0 \(x\): float32 \[2\] where float32 \[2, 2\] is needed"),
        (lambda x: 1.0, r"input 0 \(x\): float where a numpy array is needed"),
        (lambda x: x.astype("S"), r"input 0 \(x\): an array of \|S\d+, which has no type in TensorFlow"),
        (lambda x: x.astype(">f4"), r"input 0 \(x\): an array of >f4, which has no type in TensorFlow"),
    ],
)
def test_another_dtype_or_shape_is_refused(run, edit, reason):
    with pytest.raises(amanda.Error, match=r"\[action\] tool: <lambda> before taps::Add in net.add.*: " + reason):
        before(run, edit, inputs=["x"])


def test_an_operand_that_is_no_result_cannot_be_replaced(run):
    with pytest.raises(amanda.Error, match=r"input 1 \(y\): this operand cannot be replaced in TensorFlow's graph"):
        before(run, lambda x, y: (None, y * 2), results=((0, -1),))


def test_a_driver_says_why_an_undeclared_edit_is_refused(run):
    scope = taps(Graph(), tool(lambda c: c.insert_before_op(lambda x: x * 2, inputs=[0])))
    [tap] = scope[1].lowered[0]
    refusing = operator(refuse=lambda point, position: f"no edit {point} {position}")
    node = _tensorflow.TapNode(refusing, tap.id, [("input", 0, -1)], [(0, -1)])
    with pytest.raises(amanda.Error, match=r"input 0 \(x\): no edit before 0"):
        run(lambda x: emit(node, [x], [x.dtype]), x=X)


def test_after_an_operator_its_inputs_can_be_shown(run):
    seen = []

    def routine(z, inputs):
        seen.append([z.copy(), *inputs])
        return z + 1

    _scope, artifact = taps(Graph(), tool(lambda c: c.insert_after_op(routine, inputs=["y"]), require_outputs=True))
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(), tap.id, [("output", 0, -1), ("input", 1, -1)], [(0, -1)])
    result = run(lambda x, y: emit(node, [x + y, y], [x.dtype])[0], x=X, y=Y)
    assert np.array_equal(seen, [[X + Y, Y]])
    assert np.array_equal(result, X + Y + 1)


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


def test_a_list_is_one_operand(run):
    seen = []

    def routine(values):
        seen.append(values)
        return [values[0] * 2, None]

    _scope, artifact = taps(
        Graph(CONCAT, (["a", "b"], "axis"), ("out",)), tool(lambda c: c.insert_before_op(routine, inputs=["values"]))
    )
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(CONCAT), tap.id, [("input", 0, 0), ("input", 0, 1)], [(0, 0), (0, 1)])
    result = run(lambda x, y: tf.concat(emit(node, [x, y], [x.dtype, y.dtype]), 0), x=X, y=Y)
    assert np.array_equal(seen, [[X, Y]])
    assert np.array_equal(result, np.concatenate([2 * X, Y]))


def test_a_list_of_another_length_is_refused(run):
    _scope, artifact = taps(
        Graph(CONCAT, (["a", "b"], "axis"), ("out",)), tool(lambda c: c.insert_before_op(lambda v: [v[0]], inputs=[0]))
    )
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(CONCAT), tap.id, [("input", 0, 0), ("input", 0, 1)], [(0, 0), (0, 1)])
    with pytest.raises(amanda.Error, match=r"input 0 \(values\): a list of 1 where one of 2 is needed"):
        run(lambda x, y: emit(node, [x, y], [x.dtype, y.dtype]), x=X, y=Y)


def test_a_replacement_returns_a_list(run):
    _scope, artifact = taps(
        Graph(SPLIT, ("axis", "value"), (["a", "b"],)), tool(lambda c: c.replace_op(lambda axis, v: [v, -v]))
    )
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(SPLIT), tap.id, [("input", 0, -1), ("input", 1, -1)], [(0, 0), (0, 1)])
    results = run(lambda axis, x: emit(node, [axis, x], [x.dtype, x.dtype]), axis=np.int32(0), x=X)
    assert np.array_equal(results, [X, -X])


def test_operands_that_are_no_arguments_are_none(run):
    seen = []
    _scope, artifact = taps(Graph(), tool(lambda c: c.insert_before_op(lambda x, y: seen.append((x, y)))))
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(), tap.id, [("input", 1, -1)], [])

    def build(y):
        with tf.control_dependencies([emit(node, [y], [])]):
            return tf.identity(y)

    run(build, y=Y)
    [(x, y)] = seen
    assert x is None
    assert np.array_equal(y, Y)


@pytest.mark.parametrize(
    "value",
    [
        np.float32(3),
        np.float64([1.5]),
        np.int64([[1], [2]]),
        np.uint8(range(5)),
        np.array([True, False]),
        np.float32([]).reshape(0, 3),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.float16([1, 2]),
        np.arange(2**7, dtype=np.int32).reshape([2] * 7),
    ],
    ids=lambda value: f"{value.dtype}{list(value.shape)}",
)
def test_every_shown_dtype_and_shape_arrives_and_returns(run, value):
    seen = []

    def routine(x):
        seen.append(x.copy())
        return np.array(x)  # another array

    scope = taps(Graph(), tool(lambda c: c.insert_before_op(routine, inputs=[0])))
    [tap] = scope[1].lowered[0]
    node = _tensorflow.TapNode(operator(), tap.id, [("input", 0, -1)], [(0, -1)])
    with tf.device("CPU"):
        result = run(lambda x: emit(node, [x], [x.dtype])[0], x=value)
    for array in (seen[0], result):
        assert array.dtype == value.dtype
        assert array.shape == value.shape
        assert np.array_equal(array, value)


def test_a_scalar_of_numpy_is_an_array(run):
    scope = taps(Graph(), tool(lambda c: c.insert_before_op(lambda x: x.sum(), inputs=[0])))
    [tap] = scope[1].lowered[0]
    node = _tensorflow.TapNode(operator(), tap.id, [("input", 0, -1)], [(0, -1)])
    assert run(lambda x: emit(node, [x], [x.dtype])[0], x=np.float32(3)) == 3


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


def test_a_node_of_another_process_is_an_error(run):
    class Foreign:
        number = 123

    with pytest.raises(
        tf.errors.OpError, match="this graph holds nodes of a tool's that are gone, or of another process"
    ):
        run(lambda x: emit(Foreign, [x], [x.dtype]), x=X)


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


def test_places_that_do_not_fit_are_refused():
    scope, artifact = taps(Graph(), tool(lambda c: c.insert_before_op(lambda x: None, inputs=[0])))
    [tap] = artifact.lowered[0]
    made = operator()
    for args, results, reason in [
        ([("input", 2, -1)], [], "input 2 of Add does not exist"),
        ([("input", 0, -1), ("input", 0, -1)], [], "input 0 of Add is there twice"),
        ([("input", 0, -1), ("input", 0, 1)], [], "input 0 of Add is there twice"),
        ([("input", 0, -1)], [(1, -1)], "input 1 of Add is a result of its tap, but not an argument"),
    ]:
        with pytest.raises(amanda.Error, match=reason):
            _tensorflow.TapNode(made, tap.id, args, results)
    with pytest.raises(amanda.Error, match="there is no tap 5"):
        _tensorflow.TapNode(made, 5, [], [])
    with pytest.raises(amanda.Error, match="no driver 'none' is attached"):
        _tensorflow.Operator("none", ADD, 1, 1, 1)
    del scope


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


LEAVES = """
import os, sys, threading, time
import numpy as np, tensorflow as tf
from amanda import _tensorflow
from by_hand_taps import Graph, emit, operator, taps, tool
ran = threading.Event()
def routine(x):
    return x + 1
scope, artifact = taps(Graph(), tool(lambda c: c.insert_before_op(routine, inputs=[0])))
node = _tensorflow.TapNode(operator(), artifact.lowered[0][0].id, [("input", 0, -1)], [(0, -1)])
graph = tf.Graph()
with graph.as_default():
    result = tf.constant(np.zeros(4, np.float32))
    result = tf.ensure_shape(emit(node, [result], [tf.float32])[0], [4])
"""


def in_another_process(program):
    folder = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", LEAVES + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_end_of_the_interpreter_waits_for_a_routine():
    # Not for the run: TensorFlow may abort where it returns to a thread that Python has ended.
    _status, out, err = in_another_process(
        """
        ending = threading.Event()
        def slow(x):
            ran.set()
            ending.wait()
            time.sleep(0.5)
            os.write(1, b"finished\\n")
        other, made = taps(Graph(), tool(lambda c: c.insert_before_op(slow, inputs=[0])))
        slow_node = _tensorflow.TapNode(operator(), made.lowered[0][0].id, [("input", 0, -1)], [(0, -1)])
        with graph.as_default():
            result = emit(slow_node, [result], [tf.float32])
        def work():
            with tf.compat.v1.Session(graph=graph) as session:
                session.run(result)
        threading.Thread(target=work, daemon=True).start()
        ran.wait()
        os.write(1, b"end\\n")
        ending.set()
        """
    )
    assert out == "end\nfinished\n", err


def test_a_forked_process_can_leave_scopes_and_make_others():
    status, out, err = in_another_process(
        """
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(result)
        child = os.fork()
        if child == 0:  # TensorFlow itself does not run in a forked process that it was used in before
            del scope, artifact, node
            other, made = taps(Graph(), tool(lambda c: c.insert_before_op(routine, inputs=[0])))
            _tensorflow.begin_run()
            _tensorflow.end_run()
            assert _tensorflow.TapNode(operator(), made.lowered[0][0].id, [("input", 0, -1)], []).number
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert (status, out) == (0, "0\n"), err
