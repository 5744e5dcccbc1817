"""PeakMemory on TensorFlow: bytes of values, compared with what Python's objects have, and with sums by hand."""

import collections
import gc
import re
import subprocess
import sys

import amanda
import keras
import numpy as np
import pytest
import tensorflow as tf
from amanda.tools.memory import PeakMemory

FLOAT = 4


def by(memory, grouping):
    found = collections.Counter()
    for row in memory.rows(grouping):
        found[row.name if grouping == "op" else row.kind] += row.bytes
    return found


def bytes_of(variables):
    return sum(int(np.prod(one.shape)) * tf.as_dtype(one.dtype).size for one in variables)


def bytes_of_other_variables():
    """Those that earlier tests have left in this process, by kind."""
    gc.collect()
    memory = PeakMemory()
    with amanda.apply(memory):
        tf.exp(1.0)
    kinds = by(memory, "kind")
    return {kind: kinds[kind] for kind in ("parameter", "buffer", "optimizer state")}


# ---- eager code ----------------------------------------------------------------------------------------------------------


def test_a_value_is_there_as_long_as_the_programs_object():
    memory = PeakMemory()
    with amanda.apply(memory):
        x = tf.ones((8, 16))
        for _ in range(3):
            y = tf.exp(x)
            z = tf.sqrt(y)
            del y, z
        kept = [tf.exp(x) for _ in range(5)]
    ops = by(memory, "op")
    assert ops["tensorflow::Exp"] == 5 * 8 * 16 * FLOAT
    assert ops["tensorflow::Fill"] == 8 * 16 * FLOAT
    assert "tensorflow::Sqrt" not in ops
    assert "at least" in memory.answer()
    assert "5 results of tensorflow::Exp at" in memory.answer()
    del kept


@pytest.mark.parametrize(
    "alias", [lambda x: tf.reshape(x, (-1,)), tf.identity, lambda x: x[None], tf.stop_gradient, lambda x: x[:2]]
)
def test_a_result_that_has_the_memory_of_an_operand_is_counted_once(alias):
    memory = PeakMemory()
    with amanda.apply(memory):
        x = tf.exp(tf.ones((8, 16)))
        y = alias(x)
        del x
        z = tf.exp(y)
    assert memory.live_bytes["cpu"] >= sum({address(one): one.shape.num_elements() * FLOAT for one in (y, z)}.values())
    assert by(memory, "op")["tensorflow::Exp"] <= 2 * 8 * 16 * FLOAT


def address(tensor):
    """The address of an eager tensor: `numpy()` would be a copy."""
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def test_the_bytes_in_use_are_those_of_all_eager_tensors_and_variables():
    others = sum(bytes_of_other_variables().values())
    memory = PeakMemory()
    with amanda.apply(memory):
        weights = [tf.Variable(tf.random.normal((16, 16))) for _ in range(3)]
        x = tf.ones((4, 16))
        kept = [x]
        for weight in weights:
            kept += [tf.reshape(kept[-1], (-1,)), tf.nn.relu(kept[-1] @ weight)]
        constant = tf.constant(np.ones((7, 7), "float32"))
    there = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), type(x)) and thing.dtype not in (tf.resource, tf.variant, tf.string):
            there[address(thing)] = max(there.get(address(thing), 0), thing.shape.num_elements() * thing.dtype.size)
    assert memory.live_bytes["cpu"] == sum(there.values()) + bytes_of(weights) + others
    del constant


def test_the_kinds_of_a_step_with_a_tape():
    memory = PeakMemory()
    first, second = tf.Variable(tf.ones((16, 32))), tf.Variable(tf.ones((32, 8)))
    x = tf.ones((1024, 16))
    with amanda.apply(memory):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(x @ first)
            loss = tf.reduce_sum(hidden @ second)
        del hidden
        found = tape.gradient(loss, [first, second])
    kinds = by(memory, "kind")
    assert kinds["saved activation"] == 1024 * 32 * FLOAT  # that of relu
    assert kinds["parameter"] >= bytes_of([first, second])
    del found


# ---- functions -----------------------------------------------------------------------------------------------------------


def test_a_value_of_a_function_is_there_until_the_last_operator_that_takes_it():
    @tf.function
    def chain(x):
        a = tf.exp(x)  # 1
        b = tf.concat([a, a], 0)  # 2
        c = tf.concat([b, b], 0)  # 4, when a is gone
        return tf.reduce_sum(c)

    x = tf.ones((64, 64))
    once = 64 * 64 * FLOAT
    found = []
    for _ in range(2):
        memory = PeakMemory()
        with amanda.apply(memory):
            chain(x)
            chain(x)
        found.append(by(memory, "op"))
    assert found[0] == found[1]  # whatever order TensorFlow chose
    assert found[0]["tensorflow::ConcatV2"] == 6 * once
    assert "tensorflow::Exp" not in found[0]


def trained(depth, width, batch):
    layers = [keras.layers.Dense(width, activation="relu", use_bias=False) for _ in range(depth)]
    model = keras.Sequential([keras.Input((width,)), *layers])
    model.compile(keras.optimizers.Adam(1e-3), "mse", jit_compile=False)
    return model, np.ones((batch, width), "float32")


def test_the_kinds_of_keras_fit():
    keras.utils.set_random_seed(0)
    keras.backend.clear_session()  # it numbers optimizers
    model, x = trained(4, 64, 1024)
    memory = PeakMemory()
    with amanda.apply(memory):
        model.fit(x, x, batch_size=1024, epochs=2, verbose=0)
    kinds = by(memory, "kind")
    assert kinds["parameter"] >= bytes_of(model.trainable_variables)
    assert kinds["optimizer state"] >= bytes_of(model.optimizer.variables)
    names = {row.kind: row.kept_by for row in memory.rows("kind")}
    assert "adam/" in names["optimizer state"]
    # At the end of the forward pass the results of relu wait for their gradients; the last one is the prediction.
    assert 3 * 1024 * 64 * FLOAT <= kinds["saved activation"] <= 5 * 1024 * 64 * FLOAT
    modules = {row.name.split(".")[-1] for row in memory.rows("module") if row.kind == "saved activation"}
    assert {layer.name for layer in model.layers[:3]} <= modules


def test_fit_under_the_tool_gives_the_same_bits():
    def weights(*tools):
        keras.utils.set_random_seed(0)
        keras.backend.clear_session()
        model, x = trained(3, 16, 64)
        with amanda.apply(*tools) if tools else amanda.disabled():
            model.fit(x, x, batch_size=16, epochs=2, verbose=0)
        return model.get_weights()

    for one, other in zip(weights(), weights(PeakMemory(growth=True)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_session_has_variables_and_values():
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.float32, (32, 64))
        weight = tf.compat.v1.get_variable("memory_weight", (64, 128), initializer=tf.compat.v1.ones_initializer())
        loss = tf.reduce_mean(tf.nn.relu(images @ weight))
        train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        ready = tf.compat.v1.global_variables_initializer()
    without = bytes_of_other_variables()["parameter"]
    memory = PeakMemory()
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(ready)
        with amanda.apply(memory):
            for _ in range(5):
                session.run(train, {images: np.ones((32, 64), "float32")})
    (parameters,) = (row for row in memory.rows("kind") if row.kind == "parameter")
    assert "memory_weight" in parameters.kept_by
    assert parameters.bytes - without == 64 * 128 * FLOAT
    assert any(row.kind in ("saved activation", "temporary") for row in memory.rows("kind"))


# ---- growth --------------------------------------------------------------------------------------------------------------

kept_here = []


class Trainer:
    def __init__(self):
        self.history = {}


def steps(keep, trainer, step):
    """In a function without `assert`, for which pytest calls `locals()`: such a function is not looked into."""
    for number in range(8):
        keep(trainer, number, step(tf.ones((32, 64))))


def _list(trainer, number, out):
    kept_here.append(out)


def _attribute(trainer, number, out):
    trainer.history[f"step {number}"] = out


def _array(trainer, number, out):
    kept_here.append(out.numpy())


def _number(trainer, number, out):
    kept_here.append(float(tf.reduce_sum(out)))


def _last(trainer, number, out):
    trainer.history["last"] = out


@pytest.mark.parametrize(
    ("keep", "owner", "as_function"),
    [
        (_list, "kept_here[*] (global of test_memory.py)", False),
        (_list, "kept_here[*] (global of test_memory.py)", True),
        (_attribute, "trainer.history['step *']", False),
        (_array, None, False),
        (_number, None, False),
        (_last, None, True),
    ],
    ids=["list", "list in a function", "attribute", "array", "number", "last"],
)
def test_what_each_step_leaves_behind_is_named_with_its_owner(keep, owner, as_function):
    kept_here.clear()
    gc.collect()
    weight, trainer, optimizer = tf.Variable(tf.ones((64, 128))), Trainer(), keras.optimizers.SGD(0.1)

    def step(x):
        with tf.GradientTape() as tape:
            out = x @ weight
            loss = tf.reduce_mean(out**2)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return out

    if as_function:
        optimizer.build([weight])
        step = tf.function(step)
    memory = PeakMemory(growth=True)
    with amanda.apply(memory):
        steps(keep, trainer, step)
    assert memory.growth.step == "step of SGD"
    assert memory.growth.steps == 8
    if owner is None:
        assert memory.growth.bytes_per_step < 64
        assert memory.answer().startswith(("no memory was found to grow", "memory in use hardly grows"))
        return
    (row,) = (row for row in memory.growth.rows("owner") if row.bytes_per_step > 64)
    assert row.bytes_per_step == 32 * 128 * FLOAT
    assert row.kept_by.startswith(owner)


def test_a_function_that_is_traced_in_each_step_is_named():
    weight, optimizer = tf.Variable(tf.ones((4, 4))), keras.optimizers.SGD(0.1)
    optimizer.build([weight])

    @tf.function(reduce_retracing=False)
    def retraced(number):
        optimizer.apply_gradients([(weight * number, weight)])

    memory = PeakMemory(growth=True)
    with amanda.apply(memory):
        for number in range(8):
            retraced(float(number))
    assert "the function retraced is traced again: it has 1 graph more per step of SGD" in memory.answer()
    memory = PeakMemory(growth=True)
    with amanda.apply(memory):
        for number in range(8):
            retraced(tf.constant(float(number)))
    assert "traced again" not in memory.answer()


@pytest.mark.parametrize(
    ("given", "graphs"),
    [(float, 20), (lambda number: tf.constant(float(number)), 0), (lambda number: float(number % 5), 0)],
    ids=["numbers", "tensors", "five numbers"],
)
def test_without_growth_a_function_that_is_traced_in_each_step_is_named_too(given, graphs):
    gc.collect()  # functions of that name
    weight, optimizer = tf.Variable(tf.ones((4, 4))), keras.optimizers.SGD(0.1)
    optimizer.build([weight])

    @tf.function(reduce_retracing=False)
    def traced(number):
        optimizer.apply_gradients([(weight * number, weight)])

    memory = PeakMemory()
    with amanda.apply(memory):
        for number in range(20):
            traced(given(number))
    again = re.search(
        r"the function traced is traced again and again: it got (\d+) graphs in 20 steps of", memory.answer()
    )
    assert (int(again[1]) if again else 0) in (graphs, graphs + 1)  # TensorFlow may trace the first one twice
    assert ("traced again" in memory.answer()) == bool(graphs)


def test_functions_of_one_name_are_not_taken_for_one_that_is_traced_again():
    """Each of five models has its own step."""
    memory, kept = PeakMemory(), []

    def made():
        weight, optimizer = tf.Variable(tf.ones((4, 4))), keras.optimizers.SGD(0.1)
        optimizer.build([weight])

        @tf.function
        def train_step():
            optimizer.apply_gradients([(weight + 1, weight)])

        return train_step

    with amanda.apply(memory):
        for _ in range(5):
            kept.append(made())
            for _ in range(2):
                kept[-1]()
    assert "traced again" not in memory.answer()


@pytest.mark.parametrize(
    ("is_made", "given", "hint"),
    [
        (False, float, "arguments that are numbers or objects of Python are a new trace for each value"),
        (False, lambda i: tf.ones(i + 1), "tensors of another shape are a new trace, unless the function has"),
        (True, lambda i: tf.ones(3), "it is made again and again, and each has a graph of its own"),
    ],
    ids=["values", "shapes", "made"],
)
def test_the_reason_why_a_function_is_traced_again_is_named(is_made, given, hint):
    gc.collect()  # functions of that name
    weight, optimizer = tf.Variable(tf.ones((4, 4))), keras.optimizers.SGD(0.1)
    optimizer.build([weight])

    def scaled(weight, given):
        return weight * tf.reduce_sum(given)

    memory, kept = PeakMemory(growth=True), [tf.function(scaled, reduce_retracing=False)]
    with amanda.apply(memory):
        for i in range(8):
            if is_made:
                kept.append(tf.function(scaled))
            optimizer.apply_gradients([(kept[-1](weight, given(i)), weight)])
    first, second, *_ = memory.answer().splitlines()
    assert first.startswith(
        "the function scaled is traced again: it has 1 graph more per step of SGD, whose memory is not"
    )
    assert hint in first
    assert second.startswith("no other memory was found to grow")


@pytest.mark.parametrize("is_growing", [True, False])
def test_a_graph_of_a_session_that_grows_is_named_with_the_line(is_growing):
    v1 = tf.compat.v1
    memory = PeakMemory(growth=True)
    with amanda.apply(memory), tf.Graph().as_default(), v1.Session() as session:
        weight, rate = v1.get_variable("weight", (4, 4)), v1.get_variable("rate", (), trainable=False)
        step = v1.train.GradientDescentOptimizer(rate).minimize(tf.reduce_sum(weight**2))
        fed = v1.placeholder(tf.float32, ())
        once = v1.assign(rate, fed)
        session.run(v1.global_variables_initializer())
        before = len(session.graph.get_operations())
        v1.assign(rate, 0.5)
        added = len(session.graph.get_operations()) - before
        for i in range(12):
            if is_growing:
                session.run(v1.assign(rate, 0.1 / (i + 1)))
            else:
                session.run(once, {fed: 0.1 / (i + 1)})
            session.run(step)
    what = (
        rf"the graph grows by {added} operators per training run of the session, made at \S+test_memory.py:\d+, whose"
    )
    assert bool(re.match(what, memory.answer())) == is_growing
    assert ("the graph grows" in memory.answer()) == is_growing


# ---- the command ---------------------------------------------------------------------------------------------------------


def test_the_command_shows_lines_and_what_is_not_known(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import tensorflow as tf\nkept = []\nx = tf.ones((64, 64))\nfor _ in range(4):\n    kept.append(tf.exp(x))\n"
    )
    done = subprocess.run([sys.executable, "-m", "amanda", "memory", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "4 results of tensorflow::Exp at" in done.stdout
    assert "not known: what kernels use while they run" in done.stdout
    assert "train.py:5" in done.stdout
