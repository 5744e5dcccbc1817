"""NaNSentinel on TensorFlow: from a NaN back to the operator with which it began."""

from __future__ import annotations

import gc
import inspect
import warnings
import weakref

import amanda
import keras
import numpy as np
import pytest
import tensorflow as tf
from amanda.tools.nonfinite import NaNSentinel, NonfiniteError, NonfiniteWarning
from amanda.tools.nonfinite.array_trails import ArrayTrails

v1 = tf.compat.v1
both = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])


def finding_of(function, *arguments, **options):
    sentinel = NaNSentinel(**options)
    with pytest.raises(NonfiniteError), amanda.apply(sentinel):
        function(*arguments)
    return sentinel.first  # layers of Keras raise another error, with the text of this one


def links(finding):
    return [(link.name.removeprefix("tensorflow::"), link.backward_op, link.carrier) for link in finding.chain]


def entropy(x):
    logs = -tf.math.log(tf.reshape(x, [2, 3]))
    return tf.reduce_sum(x * tf.reshape(logs, [6]))


@both
def test_each_link_has_its_line_its_operand_and_its_elements(wrap):
    values = np.float32([0.5, 0.0, 0.25, 1.0, 0.0, 2.0])
    found, first = finding_of(wrap(entropy), tf.constant(values)), inspect.getsourcelines(entropy)[1]
    assert links(found) == [("Log", "", ""), ("Neg", "", "input x"), ("Mul", "", "input y")]  # a reshape is a view
    assert [int(link.source.rpartition(":")[2]) - first for link in found.chain] == [1, 1, 2]
    with np.errstate(all="ignore"):
        logs = np.log(values.reshape(2, 3))
        assert np.argwhere(np.isinf(logs)).tolist() == [[0, 1], [1, 1]]
        assert np.argwhere(np.isnan(values * -logs.reshape(6))).tolist() == [[1], [4]]
    assert [link.result for link in found.chain] == [
        "-inf at [:, 1], 2 of 6 elements",
        "inf at [:, 1], 2 of 6 elements",
        "NaN at [1], [4], 2 of 6 elements",
    ]
    assert found.origin.cause == "input x is zero"


@both
def test_numbers_are_followed(wrap):
    found = finding_of(wrap(lambda x: (1.0 / x) * x), tf.constant(0.0))
    assert links(found) == [("RealDiv", "", ""), ("Mul", "", "input x")]


def test_a_number_of_bfloat16_is_said_to_be_not_followed():
    found = finding_of(lambda x: (tf.ones((), tf.bfloat16) / x) * x, tf.zeros((), tf.bfloat16))
    assert found.chain[0].held == "a number of bfloat16, which is not followed"


@both
def test_into_a_function_that_the_caller_gave_it_to(wrap):
    inner = tf.function(lambda x: x * 0.0)
    assert links(finding_of(wrap(lambda x: inner(tf.math.log(x))), tf.zeros(3))) == [
        ("Log", "", ""),
        ("Mul", "", "input x"),
    ]


def test_the_same_bits_in_freed_memory_are_not_the_value_of_another_operator():
    def run():
        for _ in range(50):  # the memory is free again
            tf.math.log(tf.zeros(()))
        return tf.constant(-np.inf) * 0.0

    found = finding_of(run)
    assert links(found) == [("Mul", "", "input x")]
    assert found.chain[0].held == "an input that no operator seen here produced"


def test_a_copy_by_numpy_is_not_followed():
    found = finding_of(lambda: tf.constant(tf.math.log(tf.zeros(3)).numpy() + 0) * 0.0)
    assert links(found) == [("Mul", "", "input x")]


def test_in_a_loop_it_is_the_iteration_that_made_it():
    function = tf.function(
        lambda x: tf.while_loop(lambda i, x: i < 9, lambda i, x: [i + 1, x * 1e10], [tf.constant(0), x])[1] * 0.0
    )
    found = finding_of(function, tf.constant(1.0))
    assert links(found)[0] == ("Mul", "", "")
    assert "float32 ends at 3.403e+38" in found.chain[0].cause
    assert links(found)[-1] == ("Mul", "", "input x")


def test_in_a_session():
    with tf.Graph().as_default() as graph:
        y = entropy(v1.placeholder(tf.float32, [6], name="x"))
    with v1.Session(graph=graph) as session:
        found = finding_of(lambda: session.run(y, {"x:0": np.float32([0, 1, 1, 1, 1, 1])}))
    assert links(found) == [("Log", "", ""), ("Neg", "", "input x"), ("Mul", "", "input y")]


def model_that_explodes():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, name="first"), keras.layers.Dense(1)])


X = np.float32([[1.0, 2.0, -3.0], [0.5, 0.25, -1.0]])


@both
def test_through_the_variable_that_an_optimizer_writes(wrap):
    model, optimizer = model_that_explodes(), keras.optimizers.SGD(50.0)
    optimizer.build(model.trainable_variables)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(X) - 1.0) ** 2)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )

    step = wrap(step)
    found = finding_of(lambda: [step() for _ in range(60)])
    names = [link.name.removeprefix("tensorflow::") for link in found.chain]
    write = names.index("AssignSubVariableOp")
    assert all(link.backward_op for link in found.chain[: write - 1])  # gradients, and their product with the rate
    assert names[write - 1] == "Mul"
    assert names[write + 1] == "MatMul"
    assert found.chain[write].result.startswith("written to ")


def test_fit_whose_learning_rate_is_too_large():
    model = model_that_explodes()
    model.compile(keras.optimizers.SGD(50.0), "mse", jit_compile=False)
    found = finding_of(lambda: model.fit(np.tile(X, (50, 1)), np.ones((100, 1)), batch_size=4, verbose=0))
    assert found.module_path.startswith("sequential")
    assert "in float64 the result is finite" in (found.cause or found.origin.cause)


def test_a_nan_in_the_data_of_fit():
    model = model_that_explodes()
    model.compile("sgd", "mse", jit_compile=False)
    data = np.tile(X, (4, 1))
    data[3, 1] = np.nan
    found = finding_of(lambda: model.fit(data, np.ones((8, 1)), verbose=0))
    assert (found.kind, found.unread) == ("unread", "the data pipeline, whose operators are shown to no tool")


@both
def test_infinities_of_which_no_nan_comes_are_no_finding_but_the_answer_names_them(wrap):
    sentinel = NaNSentinel()
    with amanda.apply(sentinel):
        wrap(lambda x: tf.exp(-tf.math.log(x)))(tf.zeros(3))
    assert sentinel.findings() == []
    assert [(link.name, link.cause) for link in sentinel.infinities] == [("tensorflow::Log", "input x is zero")]
    assert "infinities, which do not count, began in tensorflow::Log" in sentinel.answer()


def test_a_gradient_that_is_not_used_is_said_to_be_zero():
    x = tf.constant([0.0, 4.0])
    with tf.GradientTape() as tape, amanda.apply(NaNSentinel()):
        tape.watch(x)
        loss = tf.reduce_sum(tf.where(x > 0, tf.math.log(x), 0.0))
        with pytest.raises(NonfiniteError) as caught:
            tape.gradient(loss, x)
    found = caught.value.finding
    assert (found.backward_op, found.name) == ("Mul", "tensorflow::Log")
    assert found.cause == "forward input x is zero"
    assert "if tf.where leaves the result out, let tf.where choose the operand" in str(found)


@pytest.fixture
def exact():
    """TensorFlow's optimizer rewrites arithmetic where nobody looks at the values between."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@both
def test_what_a_program_computes_is_not_changed(wrap, exact):
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.sqrt(tf.square(x)) * tf.math.log(x * x)) + tf.reduce_sum(tf.nn.softmax(x))
        return loss, tape.gradient(loss, x)

    x = tf.constant(np.float32([0.0, 1.0, -2.0]))
    plain = wrap(function)(x)
    sentinel = NaNSentinel(action="warn")
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore", NonfiniteWarning)
        watched = wrap(function)(x)
    assert sentinel.findings()
    assert all(sentinel.reached(one) == "" for one in sentinel.findings())
    for one, other in zip(plain, watched, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


def test_nothing_is_kept_after_the_scope(monkeypatch):
    kept = []
    note = ArrayTrails.note

    def noted(self, array, *args, **kwargs):
        kept.append(weakref.ref(array))
        note(self, array, *args, **kwargs)

    monkeypatch.setattr(ArrayTrails, "note", noted)
    with amanda.apply(NaNSentinel()):
        tf.math.log(tf.zeros(3))
    gc.collect()
    assert kept
    assert all(one() is None for one in kept)
