"""History on TensorFlow: losses, gradients and updates against numpy's, dead units, alarms, and steps of optimizers."""

from __future__ import annotations

import itertools
import math
import re
import time

import amanda
import keras
import numpy as np
import pytest
import tensorflow as tf
from amanda.toolkit.optimizers import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from amanda.tools.history import History, HistoryWarning, Limits

v1 = tf.compat.v1
STEPS, RATE, CLIP = 3, 0.1, 0.5
X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
WEIGHT = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)


def by_hand(clip=None):
    """The steps of gradient descent on the mean square of X @ w, in float64."""
    weight, steps = WEIGHT.astype(np.float64), []
    for _ in range(STEPS):
        result = X.astype(np.float64) @ weight
        gradient = 2 * X.T @ result / result.size
        given = gradient * min(1, (clip or math.inf) / np.linalg.norm(gradient))
        steps.append(
            {
                "loss": np.square(result).mean(),
                "norm": np.linalg.norm(weight),
                "gradient_norm": np.linalg.norm(gradient),
                "optimizer_gradient_norm": np.linalg.norm(given),
                "update_norm": RATE * np.linalg.norm(given),
                "update_ratio": RATE * np.linalg.norm(given) / np.linalg.norm(weight),
            }
        )
        weight = weight - RATE * given
    return steps


def values_of(history, name):
    """The values of one parameter and of the loss, by step."""
    rows = [row for row in history.rows("step") if row.name in (name, "loss") and row.tool in ("parameters", "scalars")]
    steps = [[*group] for _, group in itertools.groupby(rows, lambda row: row.step)]
    return [{"loss" if row.name == "loss" else row.quantity: row.value for row in step} for step in steps]


def trained(run, owner=None, clip=None):
    """A history of `run(optimizer)`, whose optimizer steps."""
    optimizer = keras.optimizers.SGD(RATE, clipnorm=clip)
    history = History(owner, find_loss=True, on_alarm=print)
    with amanda.scheduled(history, steps=optimizer) as steps:
        run(optimizer)
    assert steps.step_number == STEPS
    return history


def step(weight, optimizer):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.constant(X) @ weight))
    gradients = tape.gradient(loss, [weight])
    optimizer.apply_gradients(zip(gradients, [weight], strict=True))
    return loss


def in_function(weight, optimizer):
    function = tf.function(lambda: step(weight, optimizer))
    for _ in range(STEPS):
        function()


def eagerly(weight, optimizer):
    for _ in range(STEPS):
        step(weight, optimizer)


def around_a_function(weight, optimizer):
    product = tf.function(lambda: tf.reduce_mean(tf.square(tf.constant(X) @ weight)))
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = product()
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("run", [in_function, eagerly, around_a_function])
def test_a_step_of_a_tape(run, clip):
    module = tf.Module()
    module.weight = tf.Variable(WEIGHT, name="weight")
    history = trained(lambda optimizer: run(module.weight, optimizer), module, clip)
    assert values_of(history, "weight") == [pytest.approx(step, rel=1e-5) for step in by_hand(clip)]
    assert not history.skipped


@pytest.mark.parametrize("clip", [None, CLIP])
def test_a_step_of_fit(clip):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False, name="dense")])
    model.layers[0].set_weights([WEIGHT])

    def fit(optimizer):
        model.compile(optimizer, "mse", jit_compile=False)
        model.fit(np.tile(X, (STEPS, 1)), np.zeros((STEPS * len(X), 2)), batch_size=len(X), shuffle=False, verbose=0)

    history = trained(fit, model, clip)
    (path,) = [each.path for each in model.trainable_variables]
    assert values_of(history, path) == [pytest.approx(step, rel=1e-5) for step in by_hand(clip)]
    outputs = {row.module_path for row in history.rows() if row.tool == "statistics"}
    assert any(path.endswith("dense") for path in outputs)
    assert not any("assign" in row.source or "optimizer" in row.source for row in history.rows())


@pytest.mark.parametrize("is_resource", [False, True], ids=["reference", "resource"])
def test_a_step_of_a_session(is_resource):
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", initializer=WEIGHT, use_resource=is_resource)
        loss = tf.reduce_mean(tf.square(tf.constant(X) @ weight))
        train = v1.train.GradientDescentOptimizer(RATE).minimize(loss)
        session.run(v1.global_variables_initializer())
        history = History(find_loss=True)
        watching = register_optimizer_step_pre_hook(history.watch)
        nodes = None
        with amanda.scheduled(history, steps=register_optimizer_step_post_hook) as steps:
            for _ in range(STEPS):
                session.run(loss)  # no step
                session.run([train, loss])
                nodes = nodes or len(session.graph.get_operations())
        watching.remove()
        assert len(session.graph.get_operations()) == nodes
    assert steps.step_number == STEPS
    assert values_of(history, "weight") == [pytest.approx(step, rel=1e-5) for step in by_hand()]


def test_the_gradient_of_a_variable_that_is_used_twice_is_one():
    weight = tf.Variable(np.eye(3, dtype=np.float32), name="weight")

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ weight @ weight)
        return tf.identity(tape.gradient(loss, weight)) * 2.0

    history = History()
    with amanda.scheduled(history) as run:
        result = gradient(tf.constant(X))
        run.step()
    (row,) = (row for row in history.rows() if row.tool == "parameters")
    assert (row.name, row.quantity) == ("weight", "gradient_norm")
    assert row.value == pytest.approx(np.linalg.norm(result) / 2, rel=1e-6)


def test_accumulated_gradients_count_where_they_are_given():
    weight = tf.Variable(WEIGHT, name="weight")
    optimizer = keras.optimizers.SGD(RATE, gradient_accumulation_steps=2)
    history = History(optimizer)
    function = tf.function(lambda: step(weight, optimizer))
    with amanda.scheduled(history, steps=optimizer) as run:
        for _ in range(4):
            function()
    assert run.step_number == 2
    given = [
        row.value for row in history.rows("step") if row.label == "weight" and row.quantity.startswith("optimizer")
    ]
    gradient = by_hand()[0]["gradient_norm"]  # the same twice: the mean is it
    assert given[0] == pytest.approx(gradient, rel=1e-5)


def test_sparse_gradients_are_named(log):
    table = tf.Variable(np.ones((4, 2), np.float32), name="table")

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1, 2]) ** 2)
        return tape.gradient(loss, table).values * 1.0

    history = History()
    with amanda.scheduled(history) as run:
        gradient()
        run.step()
    assert history.skipped == {"sparse": 1}
    assert not [row for row in history.rows() if row.tool == "parameters"]
    assert "the gradient of table" in log()[0]


def test_units_that_are_dead_in_the_last_dimension():
    kernel = np.ones((1, 1, 1, 3), np.float32) * [1, -1, 1]
    relu = tf.function(lambda x: tf.nn.relu(tf.nn.conv2d(x, tf.constant(kernel, tf.float32), 1, "SAME")))
    alarms = []
    history = History(limits=Limits(dead=2), on_alarm=alarms.append)
    with amanda.scheduled(history) as run:
        for _ in range(3):
            relu(tf.ones((2, 4, 5, 1)))
            run.step()
    (alarm,) = alarms
    assert (alarm.kind, alarm.units, alarm.name) == ("dead units", (1,), "tensorflow::Relu")
    assert "1 of 3 units of dimension 3" in alarm.text


def test_vanishing_gradients_are_named_from_the_loss_on():
    layers = [keras.layers.Dense(8, activation="sigmoid", name=f"layer{i}") for i in range(12)]
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1, name="last")])
    model.compile(keras.optimizers.SGD(RATE), "mse", jit_compile=False)
    history = History(model)
    told = pytest.warns(HistoryWarning, match="vanishing gradient since step 0: the gradient of sequential")
    with told, amanda.scheduled(history, steps=register_optimizer_step_post_hook):
        model.fit(np.tile(X, (3, 1)), np.ones((24, 1)), batch_size=8, verbose=0)
    assert {alarm.kind for alarm in history.alarms} == {"vanishing gradient"}
    assert all("of that of sequential" in alarm.text and "last/kernel" in alarm.text for alarm in history.alarms)
    assert any(alarm.subject.endswith("layer0/kernel") for alarm in history.alarms)
    assert {alarm.name for alarm in history.alarms} == {"tensorflow::MatMul"}


def test_gradients_are_compared_from_the_loss_on_whatever_a_graph_computes_first():
    @tf.custom_gradient
    def late(x):
        def wait(gradient):
            time.sleep(0.3)
            return gradient

        return tf.identity(x), lambda gradient: tf.ensure_shape(tf.numpy_function(wait, [gradient], x.dtype), x.shape)

    first, last = tf.Variable(WEIGHT, name="first"), tf.Variable(WEIGHT.T, name="last")

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(X @ (first * 1e-9 + 1.0) @ late(last) - 1.0))
        return tape.gradient(loss, [first, last])

    step()
    history = History(on_alarm=print)
    with amanda.scheduled(history) as run:
        for _ in range(STEPS):
            step()
            run.step()
    names = [row.name for row in history.rows("step") if row.quantity == "gradient_norm" and row.tool == "parameters"]
    assert names == ["last", "first"] * STEPS
    (alarm,) = history.alarms
    assert (alarm.kind, alarm.subject) == ("vanishing gradient", "first")


def test_nothing_is_changed():
    def weights(watch):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
        history = History(model, find_loss=True, histograms=True, on_alarm=print)
        scope = amanda.scheduled(history, steps=register_optimizer_step_post_hook, schedule=amanda.Schedule(every=2))
        with scope if watch else amanda.disabled():
            model.fit(np.tile(X, (6, 1)), np.ones((48, 1)), batch_size=8, verbose=0)
        assert {row.step for row in history.rows("step")} == ({0, 2, 4} if watch else set())
        return model.get_weights()

    for plain, watched in zip(weights(False), weights(True), strict=True):
        np.testing.assert_array_equal(plain, watched)


def test_what_has_no_variables_is_refused():
    with pytest.raises(TypeError, match=r"^\[history\] expected a module or an optimizer, got 3$"):
        History(3)


SCRIPT = """
import keras, numpy as np  # before TensorFlow
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
x = np.random.normal(size=(96, 3))
model.fit(x, x.sum(1), verbose=0)
"""


def test_watch_answers_for_a_script_of_keras(fresh_python, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    printed = fresh_python(f"""
        from amanda.cli.main import main
        main(["watch", "--every", "2", "--top", "200", {str(tmp_path / "script.py")!r}])
    """)
    head, loss, norm, change, alarms, *table = printed.splitlines()
    assert head == "3 steps, 2 of them looked at"
    assert re.fullmatch(r"loss: from \S+ to \S+ in 2 steps, between \S+ and \S+", loss)
    assert re.fullmatch(r"norm of all gradients: from \S+ to \S+ in 2 steps, between \S+ and \S+", norm)
    assert re.search(r"its norm: \S+ \(sequential/dense\S*\) to \S+ \(sequential/dense\S*\)$", change)
    assert alarms == "alarms: none"
    assert any(line.split()[:2] == ["sequential.dense", "Relu"] for line in table)
