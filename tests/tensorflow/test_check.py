"""Check on TensorFlow: each mistake is named by its rule, and nothing is found in right programs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap

import amanda
import check_data_programs  # noqa: F401 - it adds programs
import check_programs
import check_traced_programs  # noqa: F401
import keras
import keras_programs
import numpy as np
import pytest
import tensorflow as tf
from amanda.drivers.tensorflow.view import differentiated
from amanda.tools.check import RULES, Check
from check_programs import FAULTY, NOT_NAMED, RIGHT

pytestmark = pytest.mark.filterwarnings("ignore")  # Keras' own, about some of these mistakes

ADVICE = {rule.name for rule in RULES if rule.is_advice}
MODELS = [
    *(keras_programs.transformer, keras_programs.lstm, keras_programs.convolutions),
    *(keras_programs.gradient_penalty, keras_programs.adversarial),
]


def found(program, *arguments, **options):
    check = Check(**options)
    with amanda.apply(check):
        program(*arguments)
    assert not check.skipped
    return check


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda one: one.name)
def test_a_mistake_is_named(faulty):
    (one,) = found(faulty.run, True, advice=faulty.rule in ADVICE).findings()
    assert one.rule == faulty.rule
    assert one.place.source.startswith(f"{inspect.getsourcefile(faulty.run)}:")


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda one: one.name)
def test_nothing_is_found_in_the_twin(faulty):
    assert found(faulty.run, False, advice=True).findings() == []


@pytest.mark.parametrize("program", [*NOT_NAMED, *RIGHT], ids=lambda one: one.__name__)
def test_nothing_is_found(program):
    assert found(program, advice=True).findings() == []


@pytest.mark.parametrize("make", MODELS, ids=lambda one: one.__name__)
def test_nothing_is_found_in_a_model(make):
    assert found(make().run, advice=True).findings() == []


def test_every_rule_that_knows_tensorflow_has_a_program():
    assert {one.rule for one in FAULTY} == {rule.name for rule in RULES if rule.knows("tensorflow")}


@pytest.mark.parametrize("rule", [one for one in RULES if one.is_of_tensorflow], ids=lambda one: one.name)
@pytest.mark.parametrize("is_bad", [True, False], ids=["bad", "good"])
def test_the_programs_of_a_rule(rule, is_bad, tmp_path):
    names = {"tf": tf, "keras": keras, "np": np, "x": check_programs.data(4)}
    path = tmp_path / "program.py"  # rules read the lines of functions
    path.write_text(textwrap.dedent(rule.bad if is_bad else rule.good))
    check = found(exec, compile(path.read_text(), str(path), "exec"), names)
    assert [one.rule for one in check.findings()] == ([rule.name] if is_bad else [])


def test_variables_that_are_not_tracked_are_named_with_their_layer_and_line():
    model = check_programs.OwnStep(check_programs.Experts("list"), keras.layers.Dense(1))
    (one,) = found(check_programs.fitted, model).findings()
    assert one.place.name == "tensorflow::MatMul"
    assert one.place.module_path == f"{model.name}.{model.layers[0].name}"
    what = "are tf.Variables that Keras does not track: no gradient was asked for, and the first values were kept"
    layer = model.layers[0].name
    assert one.evidence == f"{layer}.kernels[0], {layer}.kernels[1] {what}"


def test_variables_that_are_attributes_have_the_names_of_the_program():
    (one,) = found(check_programs.variables_as_attributes, True).findings()
    assert re.match(r"(experts\w*)\.first, \1\.second are tf.Variables", one.evidence)


def test_a_graph_that_was_imported_has_no_lines():
    with tf.Graph().as_default() as graph:
        tf.math.rsqrt(tf.constant([1.0, 4.0]), name="root")
    with tf.Graph().as_default() as imported, tf.compat.v1.Session(graph=imported) as session:
        tf.import_graph_def(graph.as_graph_def(), name="part")
        check = found(session.run, "part/root:0", only=["eval-in-training"])
    assert check.answer().startswith("nothing found by 1 rule, in 1 operator")


@pytest.mark.parametrize("rule", ["regularizer-left-out", "loss-not-scaled"])
@pytest.mark.parametrize("eagerly", [False, True], ids=["function", "eager"])
def test_a_rule_that_asks_for_no_operators_is_counted(rule, eagerly):
    model = check_programs.OwnStep(keras.layers.Dense(1))
    check = found(lambda: check_programs.fitted(model, eagerly=eagerly), only=[rule])
    assert check.answer().startswith("nothing found by 1 rule, in 0 operators that they ask for, and 4 steps of 1 opti")


def test_gradients_without_an_optimizer_are_looked_at():
    def program():
        weight = tf.Variable(1.0)
        with tf.GradientTape() as tape:
            loss = weight**2
        tape.gradient(loss, weight)

    check = found(program, only=["regularizer-left-out"])
    calls = "1 call of tape.gradient or tf.gradients"
    assert check.answer() == f"nothing found by 1 rule, in 0 operators that they ask for, and {calls}"


def test_what_a_scope_saw_of_a_variable_does_not_count_in_the_next():
    layer = keras.layers.Dense(1, kernel_regularizer="l2")
    layer.build((None, 4))

    def program(is_added):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(check_programs.data(4)))
            if is_added:
                loss += tf.add_n(layer.losses)
        tape.gradient(loss, layer.trainable_variables)

    check = Check(only=["regularizer-left-out"])
    counts = []
    for is_added in (True, False):
        with amanda.apply(check):
            program(is_added)
        counts.append(len(check.findings()))
    assert counts == [0, 1]


def test_an_operator_that_comes_after_the_scope_leaves_no_listener():
    asked = Check(only=["regularizer-left-out"])._gradients
    asked.open()
    asked.close()
    before = len(differentiated._listeners)
    with amanda.apply(asked):  # as on another thread
        tf.exp(1.0)
    assert len(differentiated._listeners) == before


def test_the_toolkit_may_be_imported_first():
    program = """
        import amanda.toolkit.tensorflow, amanda
        import tensorflow as tf
        names = []
        tool = amanda.Tool()
        tool.add_inst_for_op(lambda context: names.append(context.op.__name__))
        with amanda.apply(tool):
            tf.nn.relu(tf.constant(1.0))
        assert names == ["Relu"], names
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_answer_names_layer_line_evidence_and_fix():
    model = check_programs.dense(4, 1, inputs=2, last="softmax")
    check = Check(only=["one-class", "labels", "missing-zero-grad"])
    with amanda.apply(check):
        model(tf.zeros((3, 2)))
        line = "tests/tensorflow/test_check.py"
    (one,) = check.findings()
    layer = f"{model.name}.{model.layers[-1].name}"
    assert one.place.module_path == layer
    assert line in one.place.source
    assert one.evidence == f"it gets the result of linear in {layer}, of shape (3, 1)"
    head = "1 finding by 2 rules, in 1 operator that they ask for; 1 rule of PyTorch had nothing to look at"
    assert check.answer().startswith(head)


def test_nothing_changes():
    program = keras_programs.embedding()
    before, after = program.run(), {}
    found(lambda: after.update(program.run()), advice=True)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def test_a_rate_of_zero_is_told_with_the_steps_of_the_schedule():
    check = found(check_programs.steps_of_a_schedule, True, only=["learning-rate-zero"])
    (one,) = check.findings()
    assert (one.place.name, one.evidence, one.count) == ("Adam.apply", "it has become 0 after 4 of 16 steps", 12)
    assert check.answer().startswith(
        "1 finding by 1 rule, in 0 operators that they ask for, and 16 steps of 1 optimizer"
    )
    check.reset()
    assert check.answer().startswith("nothing was looked at")


def test_a_schedule_of_the_program_is_not_called():
    calls = []

    class Own(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            calls.append(step)
            return tf.maximum(0.1 * (1 - tf.cast(step, tf.float32) / 2), 0)

    def program():
        weight, optimizer = tf.Variable(1.0), keras.optimizers.SGD(Own())
        for _ in range(6):
            optimizer.apply_gradients([(weight + 1, weight)])

    program()
    without = len(calls)
    assert found(program, only=["learning-rate-zero"]).findings() == []
    assert len(calls) == 2 * without
