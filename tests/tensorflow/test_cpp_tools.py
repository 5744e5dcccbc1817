"""C++ tools on TensorFlow's tensors, through amanda/tensorflow.h: tests/tensorflow/cpp_tool.cpp."""

import importlib.util
from pathlib import Path

import amanda
import numpy as np
import pytest
from amanda import _tensorflow
from amanda.tool import NativeTool
from by_hand_taps import CONCAT, Graph, X, Y, emit, operator, taps

BOTH = [("input", 0, -1), ("input", 1, -1)]


@pytest.fixture(scope="module")
def native():
    [path] = (Path(__file__).parents[2] / "build/release/tests/tensorflow").glob("amanda_tensorflow_tool*.so")
    spec = importlib.util.spec_from_file_location("amanda_tensorflow_tool", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scope_of(native, does, seen=None, graph=None):
    return taps(graph or Graph(), NativeTool(native.array_tool(does, seen or native.Seen())))


def added(run, native, does):
    """x + y with a tap before it that returns both."""
    scope, artifact = scope_of(native, does)
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(), tap.id, BOTH, [(0, -1), (1, -1)])
    result = run(lambda x, y: sum(emit(node, [x, y], [x.dtype, y.dtype])), x=X, y=Y)
    del scope
    return result


def test_it_reads_tensors(run, native):
    seen = native.Seen()
    _scope, artifact = scope_of(native, "sum", seen)
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(), tap.id, BOTH, [(0, -1)])
    run(lambda x, y: emit(node, [x, y], [x.dtype]), x=X, y=Y)
    assert seen.sums == [10, 100]


def test_it_reads_the_members_of_a_list_and_no_integers(run, native):
    seen = native.Seen()
    _scope, artifact = scope_of(native, "sum", seen, Graph(CONCAT, (["a", "b", "c"], "axis"), ("out",)))
    [tap] = artifact.lowered[0]
    args = [("input", 0, 0), ("input", 0, 2), ("input", 1, -1)]
    node = _tensorflow.TapNode(operator(CONCAT), tap.id, args, [(0, 0)])
    run(lambda x, y, axis: emit(node, [x, y, axis], [x.dtype]), x=X, y=Y, axis=np.int32(0))
    assert seen.sums == [10, -1, 100]


def test_it_returns_tensors_of_its_own(run, native):
    assert np.array_equal(added(run, native, "double"), 2 * X + Y)


def test_it_puts_one_operand_in_place_of_another(run, native):
    assert np.array_equal(added(run, native, "swap"), 2 * Y)


def test_another_shape_is_refused(run, native):
    reason = r"input 0 \(x\): float32 \[1, 2, 3\] where float32 \[2, 2\] is needed"
    with pytest.raises(amanda.Error, match=reason):
        added(run, native, "widen")


def test_it_replaces_an_operator_and_runs_the_original(run, native):
    _scope, artifact = scope_of(native, "negate")
    [tap] = artifact.lowered[0]
    node = _tensorflow.TapNode(operator(), tap.id, BOTH, [(0, -1)], original=np.add)
    assert np.array_equal(run(lambda x, y: emit(node, [x, y], [x.dtype])[0], x=X, y=Y), -(X + Y))
