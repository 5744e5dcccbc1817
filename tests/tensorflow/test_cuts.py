"""GradientCuts on TensorFlow: variables whose gradient is None, and where their path to the loss ends."""

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


def stopped(m):
    h = tf.tanh(X @ m.a)
    return tf.stop_gradient(h) @ m.b


def rounded(m):
    h = tf.tanh(X @ m.a)
    return tf.round(h) @ m.b


def cast(m):
    h = tf.tanh(X @ m.a)
    return tf.cast(tf.cast(h, tf.int32), tf.float32) @ m.b


def best(m):
    h = tf.tanh(X @ m.a)
    return tf.one_hot(tf.argmax(h, 1), 3) @ m.b


def compared(m):
    h = tf.tanh(X @ m.a)
    return tf.cast(h > 0, tf.float32) @ m.b


# program, reason, the operator at which the path ends
KINDS = [
    (stopped, "stop_gradient", "StopGradient"),
    (rounded, "flat", "Round"),
    (cast, "integer", "Cast"),
    (best, "integer", "ArgMax"),
    (compared, "boolean", "Greater"),
]


@both
@pytest.mark.parametrize(("function", "reason", "end"), KINDS, ids=lambda value: getattr(value, "__name__", None))
def test_the_operator_at_which_the_path_ends(wrap, function, reason, end):
    cuts, first = cuts_of(differentiated(function, Model()), wrap), inspect.getsourcelines(function)[1]
    found, *others = cuts.findings()
    is_zero = function in (rounded, cast)  # all values that b is multiplied by are 0, or their sum is
    assert [(one.verdict, one.parameters) for one in others] == [("zero", ("b",))] * is_zero
    assert (found.verdict, found.parameters) == ("none", ("a",))
    (cut,) = found.cuts
    assert (cut.reason, cut.end.name, cut.last.name) == (reason, f"tensorflow::{end}", "tensorflow::Tanh")
    assert [int(one.source.rpartition(":")[2]) - first for one in (cut.last, cut.end)] == [1, 2]
    assert [(row.name, row.verdict) for row in cuts.rows()] == [("a", "none"), ("b", "zero" if is_zero else "ok")]
    assert f"{1 + is_zero} of 2 variables whose gradients were asked for got none" in cuts.answer()


@pytest.mark.parametrize(("wrap", "reason"), [(lambda f: f, "not watched"), (tf.function, "unused")])
def test_a_variable_that_is_not_used(wrap, reason):
    (found,) = cuts_of(differentiated(lambda m: X @ tf.ones((3, 3)) @ m.b, Model()), wrap).findings()
    assert (found.parameters, found.cuts[0].reason) == (("a",), reason)


@both
def test_a_variable_that_the_loss_does_not_use(wrap):
    def function(m):
        tf.matmul(X, m.a)
        return X @ m.b

    (found,) = cuts_of(differentiated(function, Model()), wrap).findings()
    (cut,) = found.cuts
    assert (found.parameters, cut.reason, cut.end.name) == (("a",), "outside the loss", "tensorflow::MatMul")


def test_what_reads_a_variable_where_tools_do_not_see_it_is_not_said_to_be_outside_the_loss():
    def function(m):
        tf.matmul(X, m.a)
        return tf.stop_gradient(tf.tanh(m.a)) @ m.b  # in eager code, TensorFlow's own code reads it for tanh

    (found,) = cuts_of(differentiated(function, Model()), lambda f: f).findings()
    assert (found.parameters, found.cuts[0].reason) == (("a",), "not seen in TensorFlow")


def test_values_that_leave_tensorflow():
    (found,) = cuts_of(differentiated(lambda m: tf.constant((X @ m.a).numpy()) @ m.b, Model()), lambda f: f).findings()
    (cut,) = found.cuts
    assert (cut.reason, cut.end.name) == ("outside the loss", "tensorflow::MatMul")
    assert "numpy() ends a path, too" in cut.text


@both
@pytest.mark.parametrize("how", ["before the tape", "stop_recording"])
def test_what_no_tape_recorded(wrap, how):
    m = Model()

    def step():
        if how == "before the tape":
            h = tf.tanh(X @ m.a)
        with tf.GradientTape() as tape:
            if how == "stop_recording":
                with tape.stop_recording():
                    h = tf.tanh(X @ m.a)
            loss = tf.reduce_sum(h @ m.b)
        return [one for one in tape.gradient(loss, [m.a, m.b]) if one is not None]

    (found,) = cuts_of(step, wrap).findings()
    (cut,) = found.cuts
    assert (found.parameters, cut.reason, cut.end.name) == (("a",), "tape", "tensorflow::MatMul")


@both
def test_a_variable_that_the_program_replaces_by_a_tensor(wrap):
    start = tf.Variable(np.ones((2, 1), np.float32), name="weight")
    x = tf.constant(np.float32([[1.0, 2.0]]))

    def replaced():
        weight = start
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x @ weight)
            gradient = tape.gradient(loss, weight)
            if gradient is not None:
                weight = weight - 0.1 * gradient
        return weight

    def watched():
        given = x * 2.0
        with tf.GradientTape() as tape:
            tape.watch(given)
            loss = tf.reduce_sum(given @ start)
        return tape.gradient(loss, [given, tf.constant(1)])[0]

    cuts = cuts_of(replaced, wrap)
    (found,) = cuts.findings()
    (cut,) = found.cuts
    assert (found.parameters, cut.reason) == (("a tensor of shape (2, 1)",), "no variable")
    assert found.passes == 2 * (cuts.answer().count("in 6 calls") + 1)  # eager code runs twice
    assert (cut.end.name, cut.end.source) == (
        "tensorflow::Sub",
        f"{__file__}:{inspect.getsourcelines(replaced)[1] + 7}",
    )
    assert cuts.answer().startswith("1 of 2 variables and tensors whose gradients were asked for got none, in ")
    assert cuts_of(watched, wrap).findings() == []


@both
def test_what_a_tape_does_not_watch(wrap):
    m = Model()
    frozen = tf.Variable(np.eye(3, dtype=np.float32), trainable=False, name="frozen")

    def step():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(m.b)
            loss = tf.reduce_sum(X @ m.a @ frozen @ m.b)
        return [one for one in tape.gradient(loss, [m.a, m.b, frozen]) if one is not None]

    found = {one.parameters: one.cuts[0].reason for one in cuts_of(step, wrap).findings()}
    assert found == {("a",): "not watched", ("frozen",): "not trainable"}


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (None, "a tensor of unknown shape"),
        ([None, 3], "a tensor of shape (None, 3)"),
        ([4, 3], "a tensor of shape (4, 3)"),
    ],
    ids=str,
)
def test_a_tensor_of_any_shape_that_gets_none(shape, name):
    m = Model()

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)])
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.stop_gradient(x) @ m.a)
        return [one for one in tape.gradient(loss, [m.a, x]) if one is not None]

    with amanda.apply(GradientCuts()) as cuts:
        step(X)
    assert {row.name: (row.verdict, row.elements) for row in cuts.rows()} == {
        name: ("none", 12 if shape == [4, 3] else 0),
        "a": ("ok", 9),
    }
    assert cuts.answer().startswith("1 of 2 variables and tensors whose gradients were asked for got none")


def test_a_tensor_alone_is_called_a_tensor():
    def step():
        x = X + 1
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.stop_gradient(x))
        assert tape.gradient(loss, x) is None

    answer = cuts_of(step, lambda f: f, times=1).answer()
    assert answer.startswith("1 of 1 tensor whose gradients were asked for got none, in 1 call of")


def test_a_gradient_that_the_program_computes():
    @tf.custom_gradient
    def sine(x):
        return tf.sin(x), lambda gradient: None

    (found,) = cuts_of(differentiated(lambda m: sine(X @ m.a) @ m.b, Model())).findings()
    assert (found.parameters, found.cuts[0].reason) == (("a",), "custom_gradient")


@pytest.mark.parametrize("given", ["argument", "capture"])
def test_through_functions_that_the_step_calls(given):
    m = Model()
    by_argument = tf.function(lambda w: tf.stop_gradient(tf.tanh(X @ w)))
    by_capture = tf.function(lambda: tf.stop_gradient(tf.tanh(X @ m.a)))
    encode = (lambda: by_argument(m.a)) if given == "argument" else by_capture
    (found,) = cuts_of(differentiated(lambda m: encode() @ m.b, m)).findings()
    (cut,) = found.cuts
    assert (cut.reason, cut.end.name, cut.last.name) == (
        "stop_gradient",
        "tensorflow::StopGradient",
        "tensorflow::Tanh",
    )


def test_in_a_branch():
    def function(m):
        chosen = tf.cond(tf.reduce_sum(X) < 9, lambda: tf.stop_gradient(X @ m.a), lambda: tf.ones((4, 3)))
        return chosen @ m.b

    (found,) = cuts_of(differentiated(function, Model())).findings()
    assert (found.parameters, found.cuts[0].end.name) == (("a",), "tensorflow::StopGradient")


def test_a_function_that_eager_code_differentiates_is_said_to_be_not_followed():
    m, called = Model(), tf.function(stopped)
    (found,) = cuts_of(differentiated(lambda m: called(m), m), lambda f: f).findings()
    (cut,) = found.cuts
    assert (found.parameters, cut.end) == (("a",), None)
    assert "functions that eager code calls" in cut.text


def test_a_session():
    with tf.Graph().as_default(), v1.Session() as session:
        x = tf.constant(X.numpy())
        a = v1.get_variable("a", initializer=np.eye(3, dtype=np.float32))
        b = v1.get_variable("b", initializer=np.ones((3, 2), np.float32))
        loss = tf.reduce_sum(tf.stop_gradient(tf.tanh(x @ a)) @ b)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(v1.global_variables_initializer())
        inference, training = GradientCuts(), GradientCuts()
        with amanda.apply(inference):
            session.run(loss)
        with amanda.apply(training):
            session.run(train)
    assert inference.findings() == []
    assert inference.answer().startswith("no backward pass was seen")
    (found,) = training.findings()
    assert (found.parameters, found.cuts[0].end.name) == (("a",), "tensorflow::StopGradient")


class Stop(keras.layers.Layer):
    def call(self, x):
        return tf.stop_gradient(x)


def trained(*layers, eagerly=False, loss="mse"):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1, name="last")])
    model.compile("adam", loss, jit_compile=False, run_eagerly=eagerly)
    model.fit(np.tile(X, (4, 1)), np.ones((16, 1)), batch_size=4, verbose=0)
    return model


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_layer_of_keras(eagerly):
    cuts = GradientCuts()
    with amanda.apply(cuts), pytest.warns(UserWarning, match="Gradients do not exist for variables"):
        trained(keras.layers.Dense(4, name="encoder"), Stop(name="stop"), eagerly=eagerly)
    (found,) = cuts.findings()
    assert [name.rpartition("encoder/")[2] for name in found.parameters] == ["kernel", "bias"]
    assert found.cuts[0].end.module_path.endswith(".stop")
    assert found.cuts[0].last.module_path.endswith(".encoder")


def small_models():
    layers = keras.layers
    frozen = layers.Dense(4, trainable=False)
    yield "frozen", [frozen], {}
    yield "normalized", [layers.Dense(8), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.1)], {}
    yield "gated", [layers.Dense(8, activation="swish"), layers.LayerNormalization(), layers.Dense(4, "gelu")], {}
    yield "recurrent", [layers.Reshape((3, 1)), layers.Bidirectional(layers.GRU(4))], {}
    yield "embedded", [layers.Rescaling(0.0), layers.Embedding(4, 4), layers.LSTM(4)], {}
    yield "eager", [layers.Dense(8, activation="elu"), layers.BatchNormalization()], {"eagerly": True}
    yield "eager and embedded", [layers.Rescaling(0.0), layers.Embedding(4, 4), layers.Flatten()], {"eagerly": True}


@pytest.fixture
def no_rewrites():
    """TensorFlow fuses arithmetic that nobody reads, which may change last bits: see "Limits" in docs/tensorflow.md."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.mark.usefixtures("no_rewrites")
@pytest.mark.parametrize(("layers", "options"), [pytest.param(*rest, id=name) for name, *rest in small_models()])
def test_healthy_models_of_keras_have_no_finding_and_learn_the_same(layers, options):
    configs = [(type(layer), layer.get_config()) for layer in layers]

    def made():
        keras.utils.set_random_seed(0)  # initializers draw their seeds when a layer is made
        return [kind.from_config(config) for kind, config in configs]

    plain, cuts = trained(*made(), **options).get_weights(), GradientCuts()
    with amanda.apply(cuts):
        watched = trained(*made(), **options).get_weights()
    assert cuts.findings() == []
    assert cuts.rows()
    assert {row.verdict for row in cuts.rows()} == {"ok"}
    assert "zero" not in cuts.answer()  # all were read
    for one, other in zip(plain, watched, strict=True):
        np.testing.assert_array_equal(one, other)


def test_variables_of_two_losses_got_one_of_theirs():
    m = Model()

    @tf.function
    def step():
        with tf.GradientTape(persistent=True) as tape:
            one, two = tf.reduce_sum(X @ m.a), tf.reduce_sum(m.b)
        return [tape.gradient(loss, m.trainable_variables)[i] for i, loss in enumerate((one, two))]

    cuts = GradientCuts()
    with amanda.apply(cuts):
        step()
    assert cuts.findings() == []
    assert [row.verdict for row in cuts.rows()] == ["partial", "partial"]


def test_watch_raises_an_alarm():
    m, optimizer = Model(), keras.optimizers.SGD(0.1)
    optimizer.build([m.a, m.b])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(stopped(m))
        gradients = zip(tape.gradient(loss, [m.a, m.b]), [m.a, m.b], strict=True)
        optimizer.apply_gradients([one for one in gradients if one[0] is not None])

    alarms = []
    history = History(find_cuts=True, on_alarm=alarms.append)
    with amanda.scheduled(history, steps=optimizer):
        for _ in range(4):
            step()
    (alarm,) = [one for one in alarms if one.kind == "no gradient"]
    assert (alarm.subject, alarm.name) == ("a", "tensorflow::StopGradient")
    assert alarm.text == "a: tf.stop_gradient returns a tensor without a path"


def test_the_command(tmp_path, capsys):
    program = tmp_path / "p.py"
    program.write_text(
        "import tensorflow as tf\n"
        "a, b = tf.Variable([1.0, 2.0], name='a'), tf.Variable([1.0, 2.0], name='b')\n"
        "with tf.GradientTape() as tape:\n"
        "    loss = tf.reduce_sum(tf.round(a) * b)\n"
        "tape.gradient(loss, [a, b])\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["gradients", str(program)])
    assert ended.value.code == 1
    told = capsys.readouterr().out
    assert (
        "1 of 2 variables whose gradients were asked for got none, in 1 call of tape.gradient or tf.gradients:" in told
    )
    assert "  cut at tensorflow::Round (" in told
    assert "p.py:4): its derivative is zero everywhere, which TensorFlow returns as None" in told
