"""GradientCuts on TensorFlow: variables whose gradients are zeros, and the operator that made them so."""

from __future__ import annotations

import inspect

import amanda
import keras
import numpy as np
import pytest
import tensorflow as tf
from amanda.cli.main import main
from amanda.tools.cuts import GradientCuts
from amanda.tools.history import History
from cuts_models import Model, X, both, cuts_of, differentiated

v1 = tf.compat.v1


def dead(m):
    h = X @ m.a - 100.0
    return tf.nn.relu(h) @ m.b + tf.reduce_sum(m.b)


def clipped(m):
    h = X @ m.a + 100.0
    return tf.clip_by_value(h, 0.0, 1.0) @ m.b


def below(m):
    h = X @ m.a - 100.0
    return tf.maximum(h, 0.0) @ m.b + tf.reduce_sum(m.b)


def masked(m):
    h = X @ m.a
    return tf.where(X < 100.0, X, h) @ m.b


def factor(m):
    h = X @ m.a
    return (h * 0.0 + 1.0) @ m.b


def signed(m):
    h = X @ m.a
    return tf.sign(h) @ m.b


def saturated(m):
    h = X @ m.a + 1000.0
    return tf.sigmoid(h) @ m.b


# program, reason, the operator that makes the gradient zero
KINDS = [
    (dead, "saturated", "Relu"),
    (clipped, "saturated", "Minimum"),
    (below, "saturated", "Maximum"),
    (masked, "masked", "SelectV2"),
    (factor, "factor", "Mul"),
    (signed, "zero derivative", "Sign"),
    (saturated, "saturated", "Sigmoid"),
]


@both
@pytest.mark.parametrize(("function", "reason", "end"), KINDS, ids=lambda value: getattr(value, "__name__", None))
def test_the_operator_that_makes_a_gradient_zero(wrap, function, reason, end):
    m, first = Model(), inspect.getsourcelines(function)[1]
    oracle = [np.abs(one).sum() for one in differentiated(function, m)()]
    assert oracle[0] == 0 < oracle[1]
    cuts = cuts_of(differentiated(function, m), wrap)
    (found,) = cuts.findings()
    assert (found.verdict, found.parameters) == ("zero", ("a",))
    (cut,) = found.cuts
    assert (cut.reason, cut.end.name) == (reason, f"tensorflow::{end}")
    assert int(cut.end.source.rpartition(":")[2]) == first + 2
    assert [(row.name, row.verdict) for row in cuts.rows()] == [("a", "zero"), ("b", "ok")]
    assert "1 of 2 variables whose gradients were asked for got none, or zeros, in " in cuts.answer()
    assert "a gradient of zero: a" in cuts.answer()


@both
def test_a_gradient_that_is_zero_once_is_no_finding(wrap):
    m, scale = Model(), tf.Variable(0.0, trainable=False)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((X @ m.a) * scale) + tf.reduce_sum(m.b)
        return tape.gradient(loss, [m.a, m.b])

    cuts, wrapped = GradientCuts(), wrap(step)
    with amanda.apply(cuts):
        wrapped()
        assert [one.parameters for one in cuts.findings()] == [("a",)]
        scale.assign(1.0)
        wrapped()
    assert cuts.findings() == []
    assert "all 2 variables whose gradients were asked for got one" in cuts.answer()
    assert "not seen" not in cuts.answer()


@both
@pytest.mark.parametrize("is_dead", [False, True])
def test_slices_of_an_embedding(wrap, is_dead):
    table, head = tf.Variable(tf.ones((100, 4)), name="table"), tf.Variable(tf.ones((4, 1)), name="head")

    def step():
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(table, [1, 2, 1])
            loss = tf.reduce_sum((tf.nn.relu(rows - 5.0 * is_dead) + 1.0) @ head)
        found = tape.gradient(loss, [table, head])
        assert isinstance(found[0], tf.IndexedSlices)
        return found[0].values, found[1]

    cuts = cuts_of(step, wrap)
    if not is_dead:
        assert cuts.findings() == []
        assert "was not seen" not in cuts.answer()
        return
    (found,) = cuts.findings()
    assert (found.verdict, found.parameters) == ("zero", ("table",))
    if wrap is tf.function:  # in eager code, ResourceGather reads the table itself
        assert found.cuts[0].end.name == "tensorflow::Relu"
    else:
        assert found.cuts[0].reason == "where is not seen"


def test_a_factor_that_starts_at_zero_is_meant():
    m = Model()
    m.b.assign(tf.zeros((3, 2)))
    cuts = cuts_of(differentiated(lambda m: X @ m.a @ m.b, m))
    assert cuts.findings() == []
    first = cuts.rows()[0] if cuts.rows()[0].name == "a" else cuts.rows()[1]
    assert (first.name, first.verdict, first.reason) == ("a", "zero", "starts at zero")
    assert "1 variable got zeros, as a variable that they are multiplied by starts at zero" in cuts.answer()


def test_a_variable_that_is_used_twice():
    """TensorFlow adds the two gradients: the sum is not shown to tools as an operator."""

    def twice(m):
        h = X @ m.a
        return tf.nn.relu(h - 100.0) @ m.b + tf.nn.relu(X @ m.a - 50.0) @ m.b + tf.reduce_sum(m.b)

    (found,) = cuts_of(differentiated(twice, Model())).findings()
    assert (found.verdict, found.parameters) == ("zero", ("a",))
    assert {one.end.name for one in found.cuts} == {"tensorflow::Relu"}


@both
def test_a_variable_of_which_one_use_is_dead(wrap):
    def twice(m):
        h = X @ m.a
        return tf.nn.relu(h - 100.0) @ m.b + tf.nn.relu(X @ m.a + 50.0) @ m.b

    cuts = cuts_of(differentiated(twice, Model()), wrap)
    assert cuts.findings() == []
    assert "all 2 variables whose gradients were asked for got one" in cuts.answer()


def test_fit_with_a_dead_layer():
    keras.utils.set_random_seed(0)
    first, hidden = keras.layers.Dense(4, name="first"), keras.layers.Dense(4, activation="relu", name="hidden")
    model = keras.Sequential([keras.Input((3,)), first, hidden, keras.layers.Dense(1, name="last")])
    hidden.bias.assign(np.full(4, -100.0))
    model.compile("sgd", "mse", jit_compile=False)
    cuts = GradientCuts()
    with amanda.apply(cuts):
        model.fit(X.numpy(), np.ones((4, 1)), verbose=0, epochs=2)
    verdicts = {row.name: row.verdict for row in cuts.rows()}
    zero = {name for name, verdict in verdicts.items() if verdict == "zero"}
    assert {name.rpartition("/")[0].rpartition("/")[2] for name in zero} >= {"first", "hidden"}
    assert verdicts[next(name for name in verdicts if name.endswith("last/bias"))] == "ok"
    relu = {cut.end.name for one in cuts.findings() for cut in one.cuts if one.parameters != ()}
    assert "tensorflow::Relu" in relu


def test_a_session():
    graph = tf.Graph()
    with graph.as_default():
        weight = v1.get_variable("zeros_weight", (3, 2), initializer=v1.ones_initializer())
        bias = v1.get_variable("zeros_bias", (2,), initializer=v1.ones_initializer())
        loss = tf.reduce_sum(tf.nn.relu(tf.constant(X.numpy()) @ weight - 100.0) + bias)
        found = tf.gradients(loss, [weight, bias])
        ready = v1.global_variables_initializer()
    cuts = GradientCuts()
    with v1.Session(graph=graph) as session:
        session.run(ready)
        with amanda.apply(cuts):
            session.run(found)
    (one,) = cuts.findings()
    assert (one.verdict, one.parameters, one.cuts[0].end.name) == ("zero", ("zeros_weight",), "tensorflow::Relu")


def test_the_command_says_where_and_why(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(
        "import tensorflow as tf\n"
        "w = tf.Variable(tf.ones((3, 2)), name='w')\n"
        "@tf.function\n"
        "def step(x):\n"
        "    with tf.GradientTape() as tape:\n"
        "        h = x @ w - 100.0\n"
        "        loss = tf.reduce_sum(tf.nn.relu(h))\n"
        "    return tape.gradient(loss, w)\n"
        "step(tf.ones((4, 3)))\n"
    )
    with pytest.raises(SystemExit) as left:
        main(["gradients", str(script)])
    assert left.value.code == 1
    told = capsys.readouterr().out
    assert "1 of 1 variable whose gradients were asked for got none, or zeros, in 1 call" in told
    assert "a gradient of zero: w\n  made zero at tensorflow::Relu" in told
    assert "train.py:7" in told


@both
def test_the_alarm_of_history(wrap):
    m, optimizer = Model(), keras.optimizers.SGD(0.1)
    optimizer.build([m.a, m.b])

    @wrap
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dead(m))
        optimizer.apply_gradients(zip(tape.gradient(loss, [m.a, m.b]), [m.a, m.b], strict=True))

    alarms = []
    history = History(find_cuts=True, on_alarm=alarms.append)
    with amanda.scheduled(history, steps=optimizer):
        for _ in range(4):
            step()
    (alarm,) = [one for one in alarms if one.kind == "zero gradient"]
    assert (alarm.subject, alarm.name, alarm.began) == ("a", "tensorflow::Relu", 0)
    assert alarm.text == "a: its input is where its derivative is zero, wherever there is a gradient"


def test_gradients_are_those_without_the_tool():
    def weights(tool=None):
        keras.utils.set_random_seed(1)
        keras.backend.clear_session()
        layers = [keras.layers.Embedding(50, 8), keras.layers.LSTM(8), keras.layers.Dense(4, activation="relu")]
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
        with amanda.apply(tool) if tool else amanda.disabled():
            model.fit(np.arange(48).reshape(8, 6), np.ones((8, 1)), epochs=2, verbose=0)
        return model.get_weights()

    for one, other in zip(weights(), weights(GradientCuts()), strict=True):
        np.testing.assert_array_equal(one, other)
