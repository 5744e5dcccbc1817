"""Functions that were traced before: a scope copies the trace, and tools see and edit what they do in a new trace."""

from __future__ import annotations

import contextlib
import gc
import weakref

import amanda
import keras
import numpy as np
import pytest
import tensorflow as tf
from amanda.toolkit.tensorflow import roles_of
from function_tools import doubles, values
from looking import Look

X = tf.constant([[1.0, -2.0, 3.0]])
W = tf.Variable(tf.reshape(tf.range(9.0), (3, 3)) - 4.0)
COUNT = tf.Variable(0.0)


class Program:
    """A function, and the names of the Python functions that TensorFlow has traced."""

    def __init__(self, make):
        self.traces = []
        self.function = make(self.traces)

    def __call__(self):
        W.assign(tf.reshape(tf.range(9.0), (3, 3)) - 4.0)
        COUNT.assign(0.0)
        return [*values(self.function(X)), *values([W, COUNT])]


def plain(traces):
    @tf.function
    def function(x):
        traces.append("function")
        with tf.name_scope("block"):
            return {"a": tf.nn.relu(x @ W), "b": [x, (tf.nn.relu(x), None)]}

    return function


def effects(traces):
    @tf.function
    def function(x):
        traces.append("function")
        COUNT.assign_add(tf.reduce_sum(tf.nn.relu(x)))
        return COUNT + 1.0

    return function


def trained(traces):
    @tf.function
    def function(x):
        traces.append("function")
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.square(tf.nn.relu(x @ W)))
        W.assign_sub(0.1 * tape.gradient(y, W))
        return y

    return function


def nested(traces):
    @tf.function
    def inner(x):
        traces.append("inner")
        return tf.nn.relu(x @ W) + 1.0

    @tf.function
    def function(x):
        traces.append("function")
        return inner(x) * inner(x - 1.0) + tf.nn.relu(x)

    return function


def nested_train(traces):
    inner = trained(traces)

    @tf.function
    def function(x):
        traces.append("function")
        return inner(x) + 1.0

    return function


def nested_effects(traces):
    inner = effects(traces)

    @tf.function
    def function(x):
        traces.append("function")
        inner(x)
        return x * 2.0

    return function


COPIED = [plain, effects, trained, nested, nested_train, nested_effects]


def loop(traces):
    @tf.function
    def function(x):
        traces.append("function")
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.nn.relu(x) - 1.0), (0, x))[1]

    return function


def branch(traces):
    @tf.function
    def function(x):
        traces.append("function")
        return tf.cond(x[0, 0] > 0.0, lambda: tf.nn.relu(x), lambda: x)

    return function


def differentiated(traces):
    inner = nested(traces)

    @tf.function
    def function(x):
        traces.append("function")
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = inner(x)
        return tape.gradient(y, x)

    return function


def mapped(traces):
    @tf.function
    def function(x):
        traces.append("function")
        return tf.vectorized_map(tf.nn.relu, tf.repeat(x, 2, 0))

    return function


TRACED = [loop, branch, differentiated, mapped]


class Places(amanda.Tool):
    """What each operator is for tools, in their order."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.add_inst_for_op(self.analyze)
        self.add_inst_for_op(self.analyze, backward=True)

    def analyze(self, context):
        op = context.backward_op if context.is_backward() else context.op
        shapes = [None if operand is None else str(getattr(operand, "shape", "list")) for operand in context.inputs]
        roles = [[role.kind for role in roles_of(operand)] for operand in context.inputs]  # "gradient" of a variable
        place = (context.op_id, context.module_path, context.source, context.namespace)
        self.seen.append((op.__name__, *place, str(shapes), str(roles)))


class Clip(amanda.Tool):
    """Edits what goes in and comes out, replaces operators, and edits gradients."""

    def __init__(self):
        super().__init__()
        self.add_inst_for_op(lambda context: context.insert_before_op(lambda x: x + 0.5, inputs=[0]), ops="Relu")
        self.add_inst_for_op(lambda context: context.insert_after_op(lambda x: x * 2.0), ops="MatMul")
        self.add_inst_for_op(lambda context: context.replace_op(lambda x: context.op(x) * 3.0), ops="Square")
        self.add_inst_for_op(self.backward, ops="Relu", backward=True)

    def backward(self, context):
        context.insert_after_backward_op(lambda gradient: None if gradient is None else gradient * 0.25)


def called_in(scope, program):
    with scope:
        return program()


@pytest.mark.parametrize("make", [*COPIED, *TRACED])
@pytest.mark.parametrize("tool", [Clip, doubles, Look])
def test_tools_do_what_they_do_in_a_new_trace(make, tool):
    expected = called_in(amanda.apply(tool()), Program(make))
    known = Program(make)
    vanilla, scope = known(), amanda.apply(tool())
    assert (vanilla == expected) is (tool is Look)
    for _ in range(2):
        assert called_in(scope, known) == expected
        assert known() == vanilla


@pytest.mark.parametrize("make", [*COPIED, *TRACED])
def test_tools_see_what_they_see_in_a_new_trace(make):
    fresh, tool, known = Places(), Places(), Program(make)
    called_in(amanda.apply(fresh), Program(make))
    known()
    called_in(amanda.apply(tool), known)
    assert tool.seen == fresh.seen != []
    assert any("gradient" in row[-1] for row in tool.seen) is (make in (trained, nested_train))


@pytest.mark.parametrize("make", COPIED)
def test_routines_run_as_often_and_in_the_same_order(make):
    fresh, look, known = Look(), Look(), Program(make)
    called_in(amanda.apply(fresh), Program(make))
    known()
    called_in(amanda.apply(look), known)
    assert look.count == fresh.count
    assert look.backward == fresh.backward


@pytest.mark.parametrize("make", COPIED)
def test_it_is_not_traced_again(make):
    program = Program(make)
    program()
    traces = [*program.traces]
    for tool in (Look(), doubles(), doubles()):
        called_in(amanda.apply(tool), program)
    assert program.traces == traces


def definitions(program):
    """Of the program's own functions, by name: those that are called, too."""
    trace = program.function.get_concrete_function(X)
    own = [one for one in (trace._inference_function, *trace.graph._functions.values()) if one is not None]
    return {one.name: one.cached_definition.SerializeToString(deterministic=True) for one in own}


@pytest.mark.parametrize("make", [*COPIED, *TRACED])
def test_the_definitions_of_the_program_stay_as_they_are(make):
    program = Program(make)
    program()
    before = definitions(program)
    for tool in (Look(), doubles()):
        called_in(amanda.apply(tool), program)
    assert definitions(program) == before


@pytest.mark.parametrize("make", TRACED)
def test_functions_with_loops_or_branches_are_traced_again(make):
    program = Program(make)
    program()
    traces = [*program.traces]
    called_in(amanda.apply(doubles()), program)
    assert program.traces == traces * 2


def test_under_a_tape_it_is_traced_again():
    program = Program(plain)
    program()
    scope = amanda.apply(doubles())

    def gradient():
        with tf.GradientTape() as tape:
            y = program.function(X)["a"]
        return values(tape.gradient(y, W))

    with scope:
        program()
        assert program.traces == ["function"]
        doubled = gradient()
        assert program.traces == ["function"] * 2
        assert gradient() == doubled
    assert doubled == gradient() != values(tf.zeros_like(W))  # an edit's gradient is straight-through


def test_an_error_of_the_program_names_its_line():
    """The text is that of the same function without a scope, but for TensorFlow's number of the function."""

    @tf.function
    def function(x, index):
        return tf.gather(tf.nn.relu(x), index)

    texts = []
    for scope in (contextlib.nullcontext(), amanda.apply(Look())):
        function(X, tf.constant(0))
        with scope, pytest.raises(tf.errors.InvalidArgumentError) as caught:
            function(X, tf.constant(7))
        texts.append(str(caught.value).partition("[Op:")[0])
    assert texts[0] == texts[1]
    line = function.python_function.__code__.co_firstlineno + 2
    assert f'test_copied.py", line {line}, in function' in texts[0]


def test_values_that_it_takes_from_outside_are_the_current_ones():
    big, scale = tf.Variable(tf.ones(1000)), tf.constant(np.full(1000, 2.0, np.float32))
    function = tf.function(lambda: tf.nn.relu(big * scale))
    assert function().numpy().max() == 2.0
    with amanda.apply(doubles()):
        assert function().numpy().max() == 4.0
        big.assign(big * 3.0)
        assert function().numpy().max() == 12.0
    assert function().numpy().max() == 6.0


def test_layers_of_keras_keep_their_names():
    def made():
        keras.utils.set_random_seed(0)
        keras.backend.clear_session()
        layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
        model = keras.Sequential(layers, name="model")
        model.compile("sgd", "mse", jit_compile=False)
        step = model.train_step
        model.train_step = lambda data: (traces.append("train_step"), step(data))[1]
        return model

    def places(tool):
        return {(name, path) for name, _, path, *_ in tool.seen}

    x, y, traces = np.ones((8, 4), np.float32), np.ones((8, 3), np.float32), []
    fresh, tool, new, known = Places(), Places(), made(), made()
    with amanda.apply(fresh):
        new.fit(x, y, verbose=0)
    known.fit(x, y, verbose=0)
    count = len(traces)
    with amanda.apply(tool):
        known.fit(x, y, verbose=0)
    assert places(tool) == places(fresh)
    assert ("MatMul", "model.dense") in places(tool)
    assert len(traces) == count


def test_copies_go_with_their_tools_and_with_the_function():
    program, graphs = Program(nested), weakref.WeakSet()
    program()
    for _ in range(3):
        with amanda.apply(doubles()):
            program()
            found = [each.graph for each in program.function._list_all_concrete_functions()]
            graphs.update(found)
    gc.collect()
    assert len(graphs) <= 3
    del program, found
    gc.collect()
    assert not graphs
