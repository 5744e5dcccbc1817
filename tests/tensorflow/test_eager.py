"""Eager operators: tools look at them after they have run."""

from __future__ import annotations

import contextlib
import threading
import warnings

import amanda
import numpy as np
import pytest
import tensorflow as tf

X = np.array([[1.0, -2.0]], np.float32)
W = np.array([[2.0], [3.0]], np.float32)


def convolve_slowly():
    """An operator that TensorFlow does not run by its fast path, because it must convert an operand in Python."""
    import keras

    kernel = keras.Variable(np.ones((1, 1, 1, 1), np.float32))
    return tf.raw_ops.Conv2D(input=tf.ones((1, 2, 2, 1)), filter=kernel, strides=[1] * 4, padding="SAME")


class Looking(amanda.Tool):
    """Records what it is shown of these operators, forward and backward."""

    def __init__(self, *ops: str) -> None:
        super().__init__()
        self.places, self.ran = [], []
        self.add_inst_for_op(self.forward, ops=list(ops) or None)
        self.add_inst_for_op(self.backward, ops=list(ops) or None, backward=True)

    def forward(self, context):
        name = context.op.__name__
        self.places.append((name, context.op_id))
        context.insert_before_op(lambda *inputs: self.ran.append((f"{name}<", inputs)))
        context.insert_after_op(lambda *outputs: self.ran.append((f"{name}>", outputs)))

    def backward(self, context):
        name = f"{context.get_backward_op().__name__} of {context.op.__name__}"
        self.places.append((name, context.get_backward_op_id()))
        context.insert_before_backward_op(lambda *grads: self.ran.append((f"{name}<", grads)))
        context.insert_after_backward_op(lambda *grads: self.ran.append((f"{name}>", grads)))

    def order(self):
        return [name for name, _ in self.ran]


def test_routines_see_values_before_and_after_an_operator():
    tool = Looking("MatMul")
    with amanda.apply(tool):
        tf.matmul(tf.constant(X), tf.constant(W))
    (before, inputs), (after, outputs) = tool.ran
    assert (before, after) == ("MatMul<", "MatMul>")
    np.testing.assert_array_equal(inputs[0], X)
    np.testing.assert_array_equal(inputs[1], W)
    np.testing.assert_array_equal(outputs[0], [[-4.0]])
    assert not inputs[0].flags.writeable


def test_the_context_tells_what_the_operator_is():
    told = []

    def look(context):
        told.append((context.namespace, context.op.name, context.op.input_names, context.module_path))
        told.append(
            (context.source.rpartition("/")[2].partition(":")[0], [each.shape.as_list() for each in context.inputs])
        )

    tool = amanda.Tool("look")
    tool.add_inst_for_op(look, ops="MatMul")
    with amanda.apply(tool), tf.name_scope("net"), tf.name_scope("dense"):
        tf.matmul(tf.constant(X), tf.constant(W))
    assert told == [
        ("tensorflow/2.21/eager", "tensorflow::MatMul", ["a", "b"], "net.dense"),
        ("test_eager.py", [[1, 2], [2, 1]]),
    ]


def test_a_list_of_tensors_is_one_operand():
    tool = Looking("ConcatV2", "Split")
    with amanda.apply(tool):
        tf.split(tf.concat([tf.constant(X), tf.constant(X)], 0), 2, 1)
    shapes = [
        [[each.shape for each in operand] if isinstance(operand, list) else operand.shape for operand in operands]
        for _, operands in tool.ran
    ]
    assert shapes == [[[(1, 2), (1, 2)], ()], [(2, 2)], [(), (2, 2)], [[(2, 1), (2, 1)]]]


def test_resources_and_strings_are_no_values():
    tool = Looking("AssignAddVariableOp", "StringLength")
    variable = tf.Variable(1.0)
    with amanda.apply(tool):
        variable.assign_add(2.0)
        tf.strings.length("four")
    assert [operand if operand is None else operand.tolist() for _, given in tool.ran for operand in given] == [
        None,
        2.0,
        None,
        4,
    ]


def test_loops_are_one_place_and_lines_are_several():
    tool = Looking("Relu")
    x = tf.constant(X)
    with amanda.apply(tool) as scope:
        for _ in range(3):
            x = tf.nn.relu(x)
        tf.nn.relu(x), tf.nn.relu(x)
    assert len(tool.places) == len(dict(map(reversed, tool.places))) == 3
    assert tool.order().count("Relu<") == 5
    assert scope.cache_info().misses == 3


def test_ids_are_those_of_the_next_scope_and_the_next_process(fresh_python):
    code = """
        import os
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import amanda, tensorflow as tf
        def model(x):
            with tf.name_scope("a"):
                return tf.nn.relu(tf.nn.relu(x))
        ids = []
        tool = amanda.Tool()
        tool.add_inst_for_op(lambda context: ids.append(context.op_id), ops="Relu")
        for _ in range(2):
            with amanda.apply(tool):
                model(tf.constant(1.0))
        print(ids)
    """
    first, second = fresh_python(code), fresh_python(code)
    assert first == second
    ids = first.strip("[]").split(", ")
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2


def test_a_root_makes_places_the_same_wherever_they_are_called_from():
    @amanda.root
    def model(x):
        return tf.nn.relu(x)

    def ids():
        found = []
        tool = amanda.Tool()
        tool.add_inst_for_op(lambda context: found.append(context.op_id), ops="Relu")
        with amanda.apply(tool):
            model(tf.constant(X))
            (lambda: model(tf.constant(X)))()
        return found

    assert len(ids()) == 1
    assert ids() == ids()


def test_backward_operators_belong_to_their_forward_operator_with_their_gradients():
    tool = Looking("MatMul", "Relu")
    w = tf.Variable(W)
    with amanda.apply(tool), tf.GradientTape() as tape:
        y = tf.nn.relu(tf.matmul(tf.constant(-X), w))
        gradient = tape.gradient(y, w)
    np.testing.assert_array_equal(gradient, -X.T)
    assert tool.order() == [
        *("MatMul<", "MatMul>", "Relu<", "Relu>"),
        *("ReluGrad of Relu<", "ReluGrad of Relu>", "MatMul of MatMul<", "MatMul of MatMul>"),
    ]
    given = dict(tool.ran)
    np.testing.assert_array_equal(given["ReluGrad of Relu<"][0], [[1.0]])
    np.testing.assert_array_equal(given["MatMul of MatMul<"][0], [[1.0]])
    x_gradient, w_gradient = given["MatMul of MatMul>"]
    assert x_gradient is None  # nobody needs it, and it is not computed
    np.testing.assert_array_equal(w_gradient, -X.T)


def test_both_gradients_of_a_product_are_operators_of_their_own():
    tool = Looking("MatMul")
    x, w = tf.Variable(X), tf.Variable(W)
    with amanda.apply(tool), tf.GradientTape() as tape:
        tape.gradient(tf.matmul(x, w), [x, w])
    assert [name for name, _ in tool.places] == ["MatMul", "MatMul of MatMul", "MatMul of MatMul"]
    assert len({id for _, id in tool.places}) == 3
    shapes = [
        [grad if grad is None else grad.shape for grad in grads] for name, grads in tool.ran if name[-3:] == "ul>"
    ]
    assert shapes == [[(1, 1)], [(1, 2), None], [None, (2, 1)]]


def test_a_run_meets_its_own_gradient_in_loops():
    pairs = []

    class Meeting(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.forward, ops="Square")
            self.add_inst_for_op(self.backward, ops="Square", backward=True)

        def forward(self, context):
            context.insert_before_op(lambda x, run: run.update(x=float(x)), with_run=True)

        def backward(self, context):
            if context.get_backward_op().__name__ == "Mul":
                context.insert_before_backward_op(
                    lambda *_, run: pairs.append((run["x"], run.index)), grad_outputs=[], with_run=True
                )

    x = tf.Variable(2.0)
    with amanda.apply(Meeting()), tf.GradientTape() as tape:
        y = x
        for _ in range(3):
            y = tf.square(y)
        tape.gradient(y, x)
    assert [x for x, _ in pairs[::2]] == [16.0, 4.0, 2.0]
    assert [index for _, index in pairs[::2]] == [2, 1, 0]


def test_what_adds_gradients_up_is_no_operator():
    tool = Looking()
    x = tf.Variable(X)
    with amanda.apply(tool), tf.GradientTape() as tape:
        y = tf.nn.relu(x)
        tape.gradient(y + y, x)
    assert {name for name, _ in tool.places} == {"Relu", "AddV2", "ReluGrad of Relu"}


def test_the_gradient_of_a_custom_gradient_is_not_shown():
    @tf.custom_gradient
    def exponential(x):
        return tf.exp(x), lambda incoming: incoming * tf.exp(x)

    tool, x = Looking("Exp", "Mul"), tf.Variable(1.0)
    with amanda.apply(tool), tf.GradientTape() as tape:
        assert tape.gradient(exponential(x), x) == tf.exp(1.0)
    assert tool.order() == ["Exp<", "Exp>", "Exp<", "Exp>"]  # in the function, and in the comparison


def test_one_code_object_in_two_python_modules_is_two_places():
    code = compile("def f(x):\n    return tf.nn.relu(x)\n", "same.py", "exec")
    one, two = ({"tf": tf, "__name__": name} for name in ("one", "two"))
    exec(code, one), exec(code, two)
    tool, x = Looking("Relu"), tf.constant(X)
    with amanda.apply(tool):
        for names, name in ((one, "one"), (two, "two"), (one, "one"), (one, "two")):
            names["__name__"] = name
            names["f"](x)
    assert len(tool.places) == len(set(tool.places)) == 2


def test_gradients_of_what_ran_outside_the_scope_are_not_shown():
    tool = Looking()
    x = tf.Variable(X)
    with tf.GradientTape(persistent=True) as tape:
        y = tf.nn.relu(x)
    with amanda.apply(tool):
        tape.gradient(y, x)
    assert tool.places == []
    tape.gradient(y, x)


def test_functions_and_graphs_are_not_eager():
    tool = amanda.Tool()
    seen = []
    tool.add_inst_for_op(lambda context: seen.append((context.namespace, context.op.__name__)))

    @tf.function
    def function(x):
        return tf.nn.relu(x) * 2.0

    def graph():
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            return session.run(tf.nn.relu(X))

    with amanda.apply(tool):
        function(tf.constant(X))
        function(tf.constant(X))
        graph()
    assert "tensorflow/2.21/eager" not in dict(seen)


@pytest.mark.parametrize("point", ["before", "after"])
def test_edits_are_refused(point, before, after):
    tool = {"before": before, "after": after}[point]("Relu", lambda x: x * 2)
    text = (
        "TensorFlow shows eager operators after they have run, so that tools can only look at them; edit it in a "
        "function: decorate the model, or the training step, with tf.function"
    )
    with amanda.apply(tool), pytest.raises(amanda.Error, match=text) as caught:
        tf.nn.relu(tf.constant(X))
    assert "tensorflow::Relu" in str(caught.value)
    np.testing.assert_array_equal(tf.nn.relu(tf.constant(X)), [[1.0, 0.0]])


def test_replacements_are_refused_at_analysis(replace):
    ran = []
    with (
        amanda.apply(replace("Relu", ran.append)),
        pytest.raises(amanda.Error, match="decorate the model, or the training"),
    ):
        tf.nn.relu(tf.constant(X))
    assert ran == []


def test_the_tools_own_exception_arrives_and_leaves_nothing_behind():
    def fail(context):
        raise ZeroDivisionError("mine")

    tool = amanda.Tool()
    tool.add_inst_for_op(fail, ops="Relu")
    with pytest.raises(ZeroDivisionError, match="mine"), amanda.apply(tool):
        tf.nn.relu(tf.constant(X))
    with amanda.apply(Looking("Relu")) as scope:
        tf.nn.relu(tf.constant(X))
    assert scope.cache_info().misses == 1


def test_operators_of_routines_are_not_seen(before):
    tool, inner = Looking("Relu", "Neg"), before("Neg", lambda x: [None, tf.nn.relu(x)][0])
    with amanda.apply(tool, inner):
        tf.negative(tf.constant(X))
    assert tool.order() == ["Neg<", "Neg>"]


def test_switches_and_threads(recorder):
    tool = recorder(ops="Relu")
    with amanda.apply(tool):
        with amanda.disabled():
            tf.nn.relu(tf.constant(X))
            with amanda.enabled():
                tf.nn.relu(tf.constant(X))
        thread = threading.Thread(target=lambda: tf.nn.relu(tf.constant(X)))
        thread.start()
        thread.join()
    tf.nn.relu(tf.constant(X))
    assert len(tool.ran) == 1


def test_scopes_on_two_threads_do_not_end_each_other(recorder):
    tools = [recorder(ops=["Relu", "Conv2D"]) for _ in range(2)]
    entered, left = threading.Event(), threading.Event()

    def other():
        with amanda.apply(tools[1]):
            entered.set()
            left.wait(120)
            convolve_slowly()

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(120)
    with amanda.apply(tools[0]):
        tf.nn.relu(tf.constant(X))
    left.set()
    thread.join()
    assert [tool.ran for tool in tools] == [["Relu"], ["Conv2D"]]


def test_tensorflow_is_as_before_after_the_last_scope():
    from amanda.drivers.tensorflow import port

    before = port.op_callbacks(), port.execute.owner.execute, port.imperative_grad.owner.imperative_grad
    with amanda.apply(Looking()):
        tf.nn.relu(tf.constant(X))
        assert port.op_callbacks() != before[0]
    assert (port.op_callbacks(), port.execute.owner.execute, port.imperative_grad.owner.imperative_grad) == before


def test_a_keras_step_is_bit_equal_and_linked():
    import keras

    def train(tool):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((8, 8, 2)),
                keras.layers.Conv2D(3, 3),
                keras.layers.BatchNormalization(),
                keras.layers.ReLU(),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(2),
            ]
        )
        optimizer = keras.optimizers.Adam()
        x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(2, 8, 8, 2)
        for _ in range(2):
            with amanda.apply(*tool) if tool else contextlib.nullcontext(), tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x, training=True) ** 2)
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return [variable.numpy() for variable in model.variables]

    tool = Looking()
    for expected, found in zip(train([]), train([tool]), strict=True):
        np.testing.assert_array_equal(expected, found)
    names = tool.order()
    assert names.count("Conv2D<") == names.count("Conv2DBackpropFilter of Conv2D<") == 2
    assert "BiasAddGrad of BiasAdd<" in names


def test_what_nobody_asks_for_is_one_look_up(monkeypatch):
    from amanda.drivers.tensorflow.eager import operands as eager_operands

    asked = []
    type_named = eager_operands.type_named
    monkeypatch.setattr(eager_operands, "type_named", lambda *args: asked.append(args[1]) or type_named(*args))
    with amanda.apply(Looking("MatMul")):
        for _ in range(3):
            tf.nn.relu(tf.constant(X))
    assert asked == ["Relu"]


def test_coverage_counts_runs(recorder):
    tool = recorder(ops="Relu")
    x = tf.Variable(X)
    scope = amanda.apply(tool, coverage=True)
    with scope, tf.GradientTape() as tape:
        for _ in range(2):
            y = tf.nn.relu(x) * 2.0
        tape.gradient(y, x)
    report = scope.coverage()
    assert report.row("tensorflow::Relu").seen == 2
    assert dict(report.row("tensorflow::Mul").skipped) == {"unasked": 2}
    assert report.row("tensorflow::ReluGrad").phase == "backward"
    assert dict(report.row("tensorflow::ReluGrad").skipped) == {"unasked": 1}


def test_a_filter_that_matched_nothing_is_told():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with amanda.apply(Looking("Conv2D")):
            tf.nn.relu(tf.constant(X))
        with amanda.apply(Looking("Conv2D")):
            pass
    (warning,) = told
    assert warning.category is amanda.UnmatchedFilterWarning
    assert "ops='Conv2D' of tool 'Looking' matched nothing that ran" in str(warning.message)


def test_a_backward_operator_named_in_ops_is_explained():
    tool = amanda.Tool("grads")
    tool.add_inst_for_op(print, ops="ReluGrad", backward=True)
    with pytest.warns(amanda.UnmatchedFilterWarning) as told, amanda.apply(tool):
        tf.nn.relu(tf.constant(X))
    assert str(told[0].message).endswith(
        "; ReluGrad is a backward operator: ask for it by its forward operator's name, with backward=True"
    )


def test_only_the_programs_own_callbacks_hear_of_operators_of_graphs(monkeypatch):
    from tensorflow.python.framework import op_callbacks

    asked, heard = [], []
    invoke = op_callbacks.invoke_op_callbacks
    monkeypatch.setattr(op_callbacks, "invoke_op_callbacks", lambda *args, **_: asked.append(args[0]) or invoke(*args))
    try:
        with amanda.apply(Looking("Relu")):
            tf.function(lambda x: tf.nn.relu(x))(tf.constant(X))
            assert not asked
            op_callbacks.add_op_callback(lambda op_type, *_, **__: heard.append(op_type))
            tf.function(lambda x: tf.nn.relu(x))(tf.constant(X))
    finally:
        op_callbacks.clear_op_callbacks()
    assert "Relu" in asked
    assert "Relu" in heard


def test_the_programs_own_callbacks_stay():
    from tensorflow.python.framework import op_callbacks

    ran = []

    def own(op_type, *rest, **named):
        ran.append(op_type)

    tool = Looking("Relu")
    with amanda.apply(tool):
        op_callbacks.add_op_callback(own)
        tf.nn.relu(tf.constant(X))
    try:
        convolve_slowly()
        with amanda.apply(tool):
            op_callbacks.remove_op_callback(own)
            tf.nn.relu(tf.constant(X))
    finally:
        op_callbacks.clear_op_callbacks()
    assert ran[0] == "Relu"
    assert b"Conv2D" in ran
    assert tool.order() == ["Relu<", "Relu>"] * 2


def test_points_lists_operators_and_those_of_the_gradient():
    w = tf.Variable(W)
    rows = amanda.points(lambda x: tf.nn.relu(tf.matmul(x, w)), tf.constant(X), backward=True).rows()
    names = [(row.operator, row.backward_operator, row.runs) for row in rows]
    assert ("tensorflow::MatMul", "", 1) in names
    assert ("tensorflow::Relu", "ReluGrad", 1) in names
    with pytest.raises(
        ValueError, match="call a model with trainable variables, from eager code; the result is of type"
    ):
        amanda.points(tf.nn.relu, tf.constant(X), backward=True)


def test_points_puts_back_what_a_model_in_training_changes():
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    before = [variable.numpy() for variable in model.variables]
    tf.random.set_seed(3)
    expected = tf.random.uniform((2,)).numpy()
    tf.random.set_seed(3)
    amanda.points(lambda x: tf.random.uniform((2,)) + x, 1.0)
    np.testing.assert_array_equal(tf.random.uniform((2,)).numpy(), expected)
    amanda.points(model, X, training=True)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
