"""The op AmandaTap: what reaches routines from a running graph, and what they return to it. No front is used: nodes are
made by hand, in a graph of version 1 and in a function."""

import gc

import amanda
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from amanda import _tensorflow
from by_hand_taps import ADD, CONCAT, Graph, X, Y, before, emit, operator, taps, tool


def test_this_tensorflow_has_all_functions():
    assert _tensorflow.check() == []


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


def test_a_node_of_another_process_is_an_error(run):
    class Foreign:
        number = 123

    with pytest.raises(
        tf.errors.OpError, match="this graph holds nodes of a tool's that are gone, or of another process"
    ):
        run(lambda x: emit(Foreign, [x], [x.dtype]), x=X)


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
