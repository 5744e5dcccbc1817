"""Functions: when they are traced, and which of them tools see."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import amanda
import numpy as np
import pytest
import tensorflow as tf
from function_tools import Mine, doubles, looks, values

X = tf.constant([[1.0, -2.0, 3.0]])


def make(**options):
    return tf.function(lambda x: tf.nn.relu(x) + 1.0, **options)


def test_a_function_is_traced_once_for_each_set_of_tools():
    function, one, two = make(), amanda.apply(doubles()), amanda.apply(looks())
    counts = []
    for scope in (None, one, None, one, two, one, None, two):
        if scope is None:
            assert values(function(X)) == [[[2.0, 1.0, 4.0]]]
        else:
            with scope:
                function(X)
        counts.append(function.experimental_get_tracing_count())
    assert counts == [1, 2, 2, 2, 3, 3, 3, 3]


def test_a_function_that_was_first_called_in_a_scope_is_vanilla_outside():
    function, scope = make(), amanda.apply(doubles())
    with scope:
        assert values(function(X)) == [[[3.0, 1.0, 7.0]]]
        with amanda.disabled():
            assert values(function(X)) == [[[2.0, 1.0, 4.0]]]
    assert values(function(X)) == [[[2.0, 1.0, 4.0]]]
    assert function.experimental_get_tracing_count() == 2


def test_traces_of_tools_that_are_gone_are_released():
    function = make()
    function(X)
    for _ in range(3):
        with amanda.apply(doubles()):
            function(X)
    assert function.experimental_get_tracing_count() <= 3
    graphs = weakref.WeakSet()
    amanda.apply(doubles())
    with amanda.apply(doubles()):
        function(X)
        graphs.update(found.graph for found in function._list_all_concrete_functions())
    with amanda.apply(doubles()):
        function(X)
    gc.collect()
    assert len(graphs) <= 2


def test_functions_in_functions_are_traced_for_the_tools_too():
    inner = make()
    outer = tf.function(lambda x: inner(x) * 10.0)
    assert values(outer(X)) == [[[20.0, 10.0, 40.0]]]
    scope = amanda.apply(doubles())
    for _ in range(2):
        with scope:
            assert values(outer(X)) == [[[30.0, 10.0, 70.0]]]
            assert values(inner(X)) == [[[3.0, 1.0, 7.0]]]
        assert values(outer(X)) == [[[20.0, 10.0, 40.0]]]
    assert inner.experimental_get_tracing_count() == outer.experimental_get_tracing_count() == 2


def test_what_never_runs_is_not_shown():
    tool = looks()

    @tf.function
    def function(x):
        tf.sin(x)  # TensorFlow drops it
        return tf.nn.relu(x)

    with amanda.apply(tool):
        function(X)
    assert tool.ran == {"Relu": 1}


def test_bodies_of_loops_and_branches_are_edited():
    @tf.function
    def function(x):
        for _ in tf.range(3):
            if tf.reduce_sum(x) > 0.0:  # noqa: SIM108
                x = tf.nn.relu(x) - 1.0
            else:
                x = -x
        return x

    def by_hand(x, factor):
        for _ in range(3):
            x = np.maximum(x, 0) * factor - 1 if x.sum() > 0 else -x
        return x

    for _ in range(2):
        with amanda.apply(doubles()):
            assert values(function(X)) == [by_hand(X.numpy(), 2).tolist()]
        assert values(function(X)) == [by_hand(X.numpy(), 1).tolist()]


@pytest.mark.parametrize("branch", [True, False])
def test_routines_in_branches_without_effects_run(branch):
    """TensorFlow chose an operator for a conditional without effects before there were taps in it."""
    ran, tool = [], amanda.Tool("counts")
    tool.add_inst_for_op(
        lambda context: context.insert_after_op(lambda name=context.op.__name__: ran.append(name), outputs=[])
    )

    @tf.function
    def function(x, which):
        return tf.cond(which, lambda: tf.sin(x), lambda: tf.cos(x))

    vanilla = values(function(X, tf.constant(branch)))
    with amanda.apply(tool):
        assert values(function(X, tf.constant(branch))) == vanilla
    assert ran == ["Sin" if branch else "Cos"]


def test_maps_and_scans():
    tool = looks()

    @tf.function
    def function(x):
        mapped = tf.map_fn(lambda row: tf.sin(row), x)
        return tf.scan(lambda total, row: total * 0.5 + row, mapped)

    rows = tf.constant(np.arange(12, dtype=np.float32).reshape(4, 3))
    vanilla = values(function(rows))
    with amanda.apply(tool):
        assert values(function(rows)) == vanilla
    assert tool.ran["Sin"] == 4
    assert tool.ran["Mul"] == 3


def test_ragged_arguments_and_results():
    function = tf.function(lambda x: tf.ragged.map_flat_values(tf.nn.relu, x))
    ragged = tf.ragged.constant([[1.0, -1.0], [2.0]])
    vanilla = function(ragged).to_list()
    with amanda.apply(doubles()):
        assert function(ragged).to_list() == [[2.0, 0.0], [4.0]]
    assert function(ragged).to_list() == vanilla == [[1.0, 0.0], [2.0]]


def test_nested_results_keep_their_structure():
    function = tf.function(lambda x: {"a": tf.nn.relu(x), "b": [x, (tf.nn.relu(x) + 1.0, None)]})
    with amanda.apply(doubles()):
        result = function(X)
    assert values(result["a"]) == [[[2.0, 0.0, 6.0]]]
    assert values(result["b"][1][0]) == [[[3.0, 1.0, 7.0]]]
    assert result["b"][1][1] is None


@pytest.mark.parametrize("options", [{"reduce_retracing": True}, {"input_signature": [tf.TensorSpec([None, 3])]}])
def test_signatures(options):
    function, scope = make(**options), amanda.apply(doubles())
    for rows in (1, 2, 3):
        x = tf.repeat(X, rows, 0)
        with scope:
            assert values(function(x)) == [[[3.0, 1.0, 7.0]] * rows]
        assert values(function(x)) == [[[2.0, 1.0, 4.0]] * rows]
    assert function.experimental_get_tracing_count() == (4 if "reduce_retracing" in options else 2)


class Lazy(tf.Module):
    """Its variable is created by the first call."""

    def __init__(self):
        super().__init__()
        self.w = None

    @tf.function
    def __call__(self, x):
        if self.w is None:
            self.w = tf.Variable(tf.ones([3]) * 2.0)
        return tf.nn.relu(x * self.w)


def test_variables_that_the_first_call_creates():
    model = Lazy()
    with amanda.apply(doubles()):
        assert values(model(X)) == [[[4.0, 0.0, 12.0]]]
    assert model.w.numpy().tolist() == [2.0, 2.0, 2.0]
    assert values(model(X)) == [[[2.0, 0.0, 6.0]]]


def test_an_analysis_that_fails_in_the_first_call_leaves_its_variables_whole():
    model, tool = Lazy(), amanda.Tool("careless")

    def analyze(context):
        raise Mine("mine")

    tool.add_inst_for_op(analyze, ops="Relu")
    with amanda.apply(tool), pytest.raises(Mine):
        model(X)
    assert values(model(X)) == [[[2.0, 0.0, 6.0]]]


def test_concrete_functions_are_vanilla_and_run_with_the_tools_in_force():
    function = make()
    before = function.get_concrete_function(X)
    with amanda.apply(doubles()):
        inside = function.get_concrete_function(tf.TensorSpec([1, 3]))
        assert inside is before
        assert values(before(X)) == [[[3.0, 1.0, 7.0]]]
        assert "AmandaTap" not in str(inside.graph.as_graph_def())
    assert values(inside(X)) == [[[2.0, 1.0, 4.0]]]


def test_functions_that_xla_compiles_run_vanilla_with_one_warning(caplog):
    function, inner, tool = make(jit_compile=True), make(), looks()
    outer = tf.function(lambda x: inner(x), jit_compile=True)
    vanilla = values(function(X))
    with amanda.apply(tool), caplog.at_level(logging.WARNING, "amanda"):
        for _ in range(2):
            assert values(function(X)) == vanilla
            assert values(outer(X)) == vanilla
            assert values(function.get_concrete_function(X)(X)) == vanilla
        assert not tool.ran
        assert values(inner(X)) == vanilla
    warned = [record.getMessage() for record in caplog.records if "jit_compile" in record.getMessage()]
    assert warned == [
        "[tensorflow] a function with jit_compile=True runs uninstrumented, and tools do not see its operators: XLA "
        "compiles it as a whole; use jit_compile=False"
    ]
    assert tool.ran == {"Relu": 1, "AddV2": 1}
    assert function.experimental_get_tracing_count() == outer.experimental_get_tracing_count() == 1


def test_datasets_keep_their_functions():
    tool, inner = looks(), make()
    with amanda.apply(tool):
        data = tf.data.Dataset.range(3).map(lambda i: inner(tf.cast(i, tf.float32))).batch(3)
        assert values(next(iter(data))) == [[1.0, 2.0, 3.0]]
    assert "Relu" not in tool.ran


def test_the_error_of_a_routine_is_the_same_object_where_the_function_calls_another():
    error = Mine("mine")

    def fails(*_):
        raise error

    tool = amanda.Tool("careless")
    tool.add_inst_for_op(lambda context: context.insert_before_op(fails), ops="Relu")
    inner = make()
    outer = tf.function(lambda x: tf.cond(tf.reduce_sum(x) > 0.0, lambda: inner(x), lambda: x))
    vanilla = values(outer(X))
    with amanda.apply(tool), pytest.raises(Mine) as raised:
        outer(X)
    assert raised.value is error
    assert values(outer(X)) == vanilla


@pytest.mark.parametrize("where", ["body", "function"])
def test_the_error_of_an_analysis_is_the_same_object_through_autograph(where):
    errors = [Mine("first")]
    tool = amanda.Tool("careless")

    def analyze(context):
        if errors:
            raise errors[0]

    tool.add_inst_for_op(analyze, ops="Relu")
    inner = make()

    @tf.function
    def function(x):
        if where == "function":
            return inner(x)
        for _ in tf.range(2):
            x = tf.nn.relu(x)
        return x

    with amanda.apply(tool):
        with pytest.raises(Mine) as raised:
            function(X)
        assert raised.value is errors.pop()
        function(X)
    assert function.experimental_get_tracing_count() == 1


def test_an_error_of_the_program_is_its_own():
    function = tf.function(lambda x: (tf.debugging.assert_positive(x), x)[1])
    with amanda.apply(looks()), pytest.raises(tf.errors.InvalidArgumentError):
        function(X)


def test_a_graph_that_cannot_have_taps_runs_vanilla(monkeypatch, caplog):
    from amanda.drivers.tensorflow.lower import tap_nodes

    emit, emitted = tap_nodes.TapNodes.emit, []

    def fails(self, *args):
        emitted.append(emit(self, *args))
        if len(emitted) == 3:
            raise RuntimeError("no more nodes")
        return emitted[-1]

    monkeypatch.setattr(tap_nodes.TapNodes, "emit", fails)
    function, tool = make(), looks()
    vanilla = values(function(X))
    with amanda.apply(tool), caplog.at_level(logging.WARNING, "amanda"):
        for _ in range(2):
            assert values(function(X)) == vanilla
    assert [record.getMessage() for record in caplog.records] == [
        "[graph] the driver 'tensorflow/2.21/function' could not put taps into a graph, which runs without them: "
        "RuntimeError: no more nodes"
    ]
    assert not tool.ran


def test_threads_that_are_in_a_scope_and_threads_that_are_not():
    function, scope, wrong = make(), amanda.apply(doubles()), []

    def work(inside):
        try:
            for _ in range(20):
                if not inside:
                    assert values(function(X)) == [[[2.0, 1.0, 4.0]]]
                    continue
                with scope:
                    assert values(function(X)) == [[[3.0, 1.0, 7.0]]]
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert function.experimental_get_tracing_count() == 2
