"""Functions that a v1 graph calls: tf.function, and control flow of TensorFlow 2. Tools work on the operators in them."""

from __future__ import annotations

import gc
import weakref

import amanda
import numpy as np
import pytest
import tensorflow as tf
from amanda.drivers.tensorflow.front import session as session_front
from amanda.drivers.tensorflow.lower.behind import Behind
from amanda.drivers.tensorflow.lower.changed import Changed
from amanda.drivers.tensorflow.view.called import CalledFunctions
from amanda.drivers.tensorflow.view.op_types import CALLS as CALL_TYPES
from amanda.drivers.tensorflow.view.op_types import draws
from amanda.drivers.tensorflow.view.order import Loops, to_run
from looking import Look
from real_programs import session_config, without_optimizer

v1 = tf.compat.v1

X = (np.array([[1, 2, 3], [-1, 0.5, 2]]) / 4).astype(np.float32)
W = np.array([[0.5, 0.3, -0.2], [0.4, 0.2, 0.6], [0.1, -0.7, 0.3]], np.float32)
MASK = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 0]], np.float32)


def layer(x, w, activation):
    return activation(tf.nn.relu(x @ w)) * tf.sin(x)


def call(x, layer):
    return tf.function(layer)(x)


def called_twice(x, layer):
    function = tf.function(layer)
    return function(function(x))


def called_in_a_call(x, layer):
    inner = tf.function(layer)
    return tf.function(lambda x: inner(x) + 1.0)(x)


def cond(x, layer):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: layer(x), lambda: x)


def case(x, layer):
    return tf.switch_case(tf.constant(1), [lambda: x, lambda: layer(x), lambda: tf.exp(x)])


def loop(x, layer):
    return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, layer(a)), [0, x])[1]


def nested(x, layer):
    def body(i, a):
        return i + 1, tf.cond(i > 0, lambda: layer(a), lambda: a)

    return tf.function(lambda x: tf.while_loop(lambda i, _: i < 3, body, [0, x])[1])(x)


def called_in_frames(x, layer):
    """The loop is nodes of the graph itself."""
    function = tf.function(layer)
    v1.disable_control_flow_v2()
    try:
        return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, function(a)), [0, x])[1]
    finally:
        v1.enable_control_flow_v2()


CALLS = [call, called_twice, called_in_a_call, cond, case, loop, nested]
RUNS = {call: 1, called_twice: 2, called_in_a_call: 1, cond: 1, case: 1, loop: 3, nested: 2, called_in_frames: 3}


class Model:
    """sum(y²) of what `calls` makes of a layer, its gradients, and a step of gradient descent."""

    def __init__(self, calls, mask=None, activation=lambda y: y):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, [2, 3], name="x")
            self.w = v1.get_variable("w", initializer=W, use_resource=True)
            with tf.name_scope("block"):
                self.y = calls(self.x, lambda x: layer(x, self.w if mask is None else self.w * mask, activation))
            self.loss = tf.reduce_sum(tf.square(self.y))
            if calls is not called_in_frames:
                self.gradients = tf.gradients(self.loss, [self.w, self.x])
                self.train = v1.train.GradientDescentOptimizer(0.1).minimize(self.loss)
            self.saver = v1.train.Saver()
            self.init = v1.global_variables_initializer()
        self.session = v1.Session(graph=self.graph, config=session_config())
        self.session.run(self.init)

    def forward(self):
        return self.session.run([self.y, self.loss], {self.x: X})

    def both(self):
        return self.session.run([self.y, self.loss, *self.gradients], {self.x: X})

    def trained(self):
        """Losses of three steps, and the variable after them."""
        losses = [self.session.run([self.loss, self.train], {self.x: X})[0] for _ in range(3)]
        return [*losses, self.session.run(self.w)]


def equal(got, expected):
    return len(got) == len(expected) and all(map(np.array_equal, got, expected))


def close(got, expected):
    return len(got) == len(expected) and all(np.allclose(a, b, rtol=1e-5) for a, b in zip(got, expected, strict=True))


def edits(op, function, how="insert_after_op"):
    tool = amanda.Tool(f"edits {op}")
    tool.add_inst_for_op(lambda context: getattr(context, how)(function), ops=f"tensorflow::{op}")
    return tool


class Mask(amanda.Tool):
    """Masks the weight of each product, and its gradient."""

    def __init__(self):
        super().__init__()
        self.add_inst_for_op(lambda context: context.insert_before_op(self.mask, inputs=[1]), ops="MatMul")
        self.add_inst_for_op(self.backward, ops="MatMul", backward=True, require_outputs=True)

    def backward(self, context):
        if context.grad_inputs[1] is not None:
            context.insert_after_backward_op(self.mask, grad_inputs=[1])

    def mask(self, weight):
        return weight * MASK


class Events(amanda.Tool):
    """The order in which routines run at products and their gradients, with places."""

    def __init__(self):
        super().__init__()
        self.events, self.places = [], set()
        self.add_inst_for_op(self.analyze, ops=["MatMul", "Relu"])

    def analyze(self, context):
        name = context.op.__name__
        self.places.add((name, context.module_path, context.source.rpartition("/")[2].partition(":")[0]))
        context.insert_before_op(self.note, event=name)
        context.insert_before_backward_op(self.note, event=f"backward {name}")

    def note(self, *values, event):
        self.events.append(event)


@pytest.mark.parametrize("calls", [*CALLS, called_in_frames])
def test_operators_run_in_order_as_often_as_the_function(calls):
    tool, model = Events(), Model(calls)
    with amanda.apply(tool):
        model.forward()
    assert tool.events == ["MatMul", "Relu"] * RUNS[calls]


@pytest.mark.parametrize("calls", CALLS)
def test_backward_operators_come_after_their_forward_operators(calls):
    tool, model = Events(), Model(calls)
    with amanda.apply(tool):
        model.both()
    forward, backward = ["MatMul", "Relu"], ["backward Relu", "backward MatMul", "backward MatMul"]
    assert tool.events == forward * RUNS[calls] + backward * RUNS[calls]


@pytest.mark.parametrize("calls", CALLS)
def test_places_are_those_of_the_program(calls):
    tool, model = Events(), Model(calls)
    with amanda.apply(tool):
        model.both()
    path = {cond: "block.cond", case: "block.switch_case.indexed_case", loop: "block.while", nested: "block.while.cond"}
    here = __file__.rpartition("/")[2]
    assert tool.places == {(name, path.get(calls, "block"), here) for name in ("MatMul", "Relu")}


@pytest.mark.parametrize("calls", [*CALLS, called_in_frames])
@pytest.mark.parametrize("hand_back", [False, True])
def test_looking_at_a_forward_pass_changes_no_bit(calls, hand_back):
    model = Model(calls)
    vanilla, look = model.forward(), Look(hand_back=hand_back)
    scope = amanda.apply(look)
    with scope:
        assert equal(model.forward(), vanilla)
    assert look.count["MatMul"] == RUNS[calls]
    assert equal(model.forward(), vanilla)
    with scope:
        assert equal(model.forward(), vanilla)
    assert look.count["MatMul"] == 2 * RUNS[calls]


@pytest.mark.parametrize("calls", CALLS)
def test_looking_at_training_changes_no_bit(calls):
    vanilla, model, look = Model(calls).trained(), Model(calls), Look()
    with amanda.apply(look):
        assert equal(model.trained(), vanilla)
    assert look.count["MatMul"] == 3 * RUNS[calls]
    assert look.backward["ReluGrad"] == 3 * RUNS[calls]


@pytest.mark.parametrize("calls", CALLS)
def test_a_mask_trains_as_one_that_is_in_the_program(calls):
    model = Model(calls)
    with amanda.apply(Mask()):
        masked = model.both(), model.trained()
    by_hand = Model(calls, mask=MASK)
    for got, expected in zip(masked, (by_hand.both(), by_hand.trained()), strict=True):
        assert close(got, expected)
    assert not close(masked[0], Model(calls).both())


def doubled(y):
    return y + tf.stop_gradient(y)


@pytest.mark.parametrize("calls", CALLS)
def test_an_edited_result(calls):
    with amanda.apply(edits("Relu", lambda y: 2 * y)):
        edited = Model(calls).forward()
    assert close(edited, Model(calls, activation=doubled).forward())
    assert not close(edited, Model(calls).forward())


@pytest.mark.parametrize("calls", CALLS)
def test_a_replacement_and_its_gradients(calls):
    with amanda.apply(edits("Relu", lambda x: 2 * np.maximum(x, 0), "replace_op")):
        replaced = Model(calls).both()
    assert close(replaced, Model(calls, activation=doubled).both())


@pytest.mark.parametrize("calls", CALLS)
def test_edited_gradients(calls):
    tool = amanda.Tool("stops")
    tool.add_inst_for_op(
        lambda context: context.insert_after_backward_op(np.zeros_like, grad_inputs=[0]), ops="Relu", backward=True
    )
    with amanda.apply(tool):
        _, _, of_weight, of_x = Model(calls).both()
    assert not of_weight.any()
    assert of_x.any()


@pytest.mark.parametrize("calls", CALLS)
def test_an_error_is_the_routines_own_and_leaves_the_session_as_it_was(calls):
    model = Model(calls)
    vanilla = model.both()
    with amanda.apply(edits("Relu", lambda y: 1 / 0)), pytest.raises(ZeroDivisionError) as caught:
        model.both()
    assert "'edits Relu'" in caught.value.__notes__[0]
    assert equal(model.both(), vanilla)


def test_an_analysis_that_fails_copies_nothing():
    model = Model(call)
    operators, functions = model.graph.num_operations(), set(model.graph._functions)
    tool = amanda.Tool("fails")
    tool.add_inst_for_op(lambda context: 1 / 0, ops="Relu")
    with amanda.apply(tool), pytest.raises(ZeroDivisionError):
        model.both()
    assert (model.graph.num_operations(), set(model.graph._functions)) == (operators, functions)


@pytest.mark.parametrize("calls", CALLS)
def test_nothing_is_copied_if_no_tool_asks_for_an_operator_inside(calls):
    model = Model(calls)
    functions = set(model.graph._functions)
    with amanda.apply(edits("Square", lambda y: None)):
        model.both()
    assert set(model.graph._functions) == functions
    with amanda.apply(edits("Relu", lambda y: None)):
        model.both()
    copied = set(model.graph._functions) - functions
    assert copied
    with amanda.apply(edits("Relu", lambda y: None)) as scope:
        model.both()
        count = len(model.graph._functions)
        model.both()
        assert len(model.graph._functions) == count
    assert scope


@pytest.mark.parametrize("calls", CALLS)
def test_exports_have_no_copies(calls, tmp_path):
    model = Model(calls)

    def exported():
        with model.graph.as_default():
            model.saver.save(model.session, str(tmp_path / "model"))
        return model.graph.as_graph_def().SerializeToString(deterministic=True), (tmp_path / "model.meta").read_bytes()

    vanilla = exported()
    with amanda.apply(Look()):
        model.both()
        assert exported() == vanilla
    assert exported() == vanilla


def test_a_function_with_and_without_its_gradient():
    """TensorFlow makes two functions of one graph: one that saves values for gradients, and one that does not."""
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        x = tf.constant(X)
        function = tf.function(lambda x: tf.exp(x))
        y, z = function(x), function(2 * x)
        gradient = tf.gradients(y, x)[0]
        vanilla, look = session.run([y, z, gradient]), Look(["Exp"])
        with amanda.apply(look):
            assert equal(session.run([y, z, gradient]), vanilla)
    assert look.count["Exp"] == 2
    assert look.backward["Mul"] == 1


def test_ids_are_places_of_the_program():
    """Two conditionals, in which operators have the same names: the ids differ, and are those of another build."""

    def ids():
        found = []
        tool = amanda.Tool("ids")
        tool.add_inst_for_op(lambda context: found.append(context.op_id), ops="Exp")
        with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            x = tf.constant(X)
            for _ in range(2):
                x = tf.cond(tf.reduce_sum(x) > 0, lambda x=x: tf.exp(x), lambda x=x: x)
            with amanda.apply(tool):
                session.run(x)
        return found

    first = ids()
    assert len(set(first)) == 2
    assert ids() == first


def test_a_run_of_an_operator_is_shared_with_its_gradient():
    seen = []

    class Shared(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyze, ops="MatMul")

        def analyze(self, context):
            context.insert_after_op(self.forward, with_run=True)
            context.insert_before_backward_op(self.backward, with_run=True)

        def forward(self, output, run):
            run["output"] = output.copy()

        def backward(self, gradient, run):
            seen.append(run["output"].sum())

    model = Model(loop)
    with amanda.apply(Shared()):
        model.both()
    y, products = X, []
    for _ in range(3):
        products.append((y @ W).sum())
        y = np.maximum(y @ W, 0) * np.sin(y)
    np.testing.assert_allclose(seen, np.repeat(products[::-1], 2), rtol=1e-5)


def straight_through(factor):
    return lambda y: y + tf.stop_gradient(y) * (factor - 1)


def two_products(calls, after=lambda y: y, before=lambda y: y):
    """The gradient of relu takes its own result, and that of the product behind it its input. A function saves one value
    for both."""

    def both(x, _):
        with v1.variable_scope("", reuse=v1.AUTO_REUSE):
            w = v1.get_variable("w", initializer=W, use_resource=True)
        return calls(x, lambda x: before(after(tf.nn.relu(x @ w))) @ w)

    with without_optimizer():
        return Model(both)


class EditsBoth(amanda.Tool):
    """Doubles the result of each relu, and triples it for the product that takes it."""

    def __init__(self, before):
        super().__init__()
        self.add_inst_for_op(lambda context: context.insert_after_op(lambda y: 2 * y), ops="Relu")
        if before:
            self.add_inst_for_op(self.analyze, ops="MatMul")

    def analyze(self, context):
        if context.inputs[0].op.type == "Relu":
            context.insert_before_op(lambda y: 3 * y, inputs=[0])


@pytest.mark.parametrize("calls", [cond, case, loop, nested])
@pytest.mark.parametrize("before", [False, True])
def test_gradients_take_a_value_before_an_edit_and_after_it(calls, before):
    model = two_products(calls)
    vanilla = model.both()
    with amanda.apply(EditsBoth(before)):
        edited = model.both()
    by_hand = two_products(calls, straight_through(2), straight_through(3 if before else 1))
    assert close(edited, by_hand.both())
    assert not close(edited, vanilla)
    assert equal(model.both(), vanilla)


def loop_with_an_end(x, layer):
    return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, layer(a)), [0, x], maximum_iterations=5)[1]


@pytest.mark.parametrize("calls", [call, loop_with_an_end])
def test_an_edit_for_which_a_function_has_no_place_is_an_error(calls):
    """A call has one result for each value, and a list with a greatest length no place for another one."""
    model = two_products(calls)
    vanilla = model.both()
    with amanda.apply(edits("Relu", lambda y: 2 * y)):
        assert not close(model.forward(), vanilla[:2])
        with pytest.raises(amanda.Error, match=r"after tensorflow::Relu.*: this operand cannot be replaced in"):
            model.both()
    with amanda.apply(edits("Relu", lambda y: None)):
        assert equal(model.both(), vanilla)
    assert equal(model.both(), vanilla)


def test_an_edit_of_a_value_that_gradients_take_from_outside_is_an_error():
    """The weight is the same in each iteration, so that the loop does not save it."""

    def build(mask=None):
        graph = tf.Graph()
        with graph.as_default():
            w = tf.constant(W) + v1.placeholder_with_default(np.float32(0), [])
            inside = (lambda: w) if mask is None else (lambda: w * mask)
            y = tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a @ inside()), [0, tf.constant(X)])[1]
            fetches = [y, *tf.gradients(y, w)]
        return v1.Session(graph=graph), fetches

    session, fetches = build()
    vanilla = session.run(fetches)
    other, masked = build(MASK)
    by_hand = other.run(masked[:1])
    with amanda.apply(Mask()):
        assert close(session.run(fetches[:1]), by_hand)
        with pytest.raises(amanda.Error, match=r"before tensorflow::MatMul.*: this operand cannot be replaced in"):
            session.run(fetches)
    assert equal(session.run(fetches), vanilla)


def random_numbers(x):
    return x + tf.random.uniform([2, 3], seed=1)


def test_functions_that_draw_random_numbers_are_left_alone_and_counted(caplog, monkeypatch):
    monkeypatch.setattr("amanda.drivers.tensorflow.front.unsupported._unshown._told", [])

    def build():
        graph = tf.Graph()
        with graph.as_default():
            y = tf.nn.relu(tf.function(random_numbers)(tf.function(tf.exp)(tf.constant(X))))
        return v1.Session(graph=graph), y

    (session, y), (other, same) = build(), build()
    vanilla, look = [other.run(same) for _ in range(3)], Look()
    with amanda.apply(look, coverage=True) as scope:
        assert equal([session.run(y) for _ in range(3)], vanilla)
    assert look.count == {"Relu": 3}
    coverage = {row.operator: row.skipped for row in scope.coverage().rows if row.skipped}
    assert {name: reasons.get("graph") for name, reasons in coverage.items()} == {
        "tensorflow::AddV2": 1,
        "tensorflow::RandomUniform": 1,
        "tensorflow::Exp": 1,
    }
    assert [record.getMessage() for record in caplog.records if record.name == "amanda"] == [
        "[tensorflow] a Session runs functions, and tools are not shown the operators in them: random numbers are drawn "
        "behind them, which a copy would change",
        "[tensorflow] a Session runs functions, and tools are not shown the operators in them: they draw random numbers, "
        "and a copy would draw others; use tf.random.stateless_uniform or the like",
    ]


def in_frames(make):
    v1.disable_control_flow_v2()
    try:
        return make()
    finally:
        v1.enable_control_flow_v2()


def drawn_with_an_effect(x):
    """The original that draws needs a print."""
    with tf.control_dependencies([v1.Print(x, [x])]):
        return tf.random.uniform(tf.shape(x)) + x


def drawn_in_a_loop(x):
    return in_frames(
        lambda: tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, a + tf.random.uniform([2, 3])), [0, x])[1]
    )


BEHIND = {
    "nothing": lambda x: tf.exp(x),
    "random numbers": lambda x: x + tf.random.uniform([2, 3]),
    "random numbers of a shape": lambda x: tf.random.uniform(tf.shape(x)),
    "an effect before random numbers": lambda x: tf.random.uniform(tf.shape(v1.Print(x, [x]))),
    "an effect after random numbers": lambda x: v1.Print(x + tf.random.uniform(tf.shape(x)), [x]),
    "a control edge": drawn_with_an_effect,
    "random numbers in a loop": drawn_in_a_loop,
    "a function with random numbers": lambda x: tf.function(random_numbers)(x),
    "random numbers, and a function with others": lambda x: tf.function(random_numbers)(x + tf.random.uniform([2, 3])),
}


@pytest.mark.parametrize("name", BEHIND)
@pytest.mark.parametrize("is_fed", [False, True], ids=["", "fed"])
def test_the_calls_whose_copies_draw_others_are_those_with_such_operators_behind_them(name, is_fed):
    """For each call alone, `Changed` finds what is copied with it."""
    with tf.Graph().as_default() as graph:
        function = tf.function(tf.nn.relu)
        first = function(v1.placeholder_with_default(X, [None, 3]))  # of a shape that is not known
        middle = BEHIND[name](function(first))
        last = function(tf.cond(tf.reduce_sum(middle) > 0, lambda: middle, lambda: -middle))
        side = function(tf.constant(X))
        fed = frozenset([id(middle)] if is_fed else [])
        operators = to_run([last.op, side.op], fed)
    called = CalledFunctions(graph, operators)

    def by_changed(op):
        copied = Changed(operators, [], {}, fed, Loops(operators), [op]).found
        return any(draws(each) or called.keeps_state(each) for each in copied)

    behind = Behind(operators, fed, called.keeps_state)
    calls = [op for op in operators if op.type in CALL_TYPES and not called.keeps_state(op)]
    assert len(calls) == (3 if is_fed else 5)
    assert [behind.draws(op) for op in calls] == [by_changed(op) for op in calls]
    left_alone = {"nothing", "random numbers", "random numbers of a shape", "an effect after random numbers"}
    assert any(map(by_changed, calls)) == (not is_fed and name not in left_alone)


@pytest.mark.parametrize(("asked", "is_searched"), [("Tanh", False), ("Exp", True)])
def test_what_is_behind_calls_is_searched_only_if_a_tool_asks_for_an_operator_in_them(monkeypatch, asked, is_searched):
    made = []
    monkeypatch.setattr(session_front, "Behind", lambda *given: made.append(given) or Behind(*given))
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        y = tf.tanh(tf.function(tf.exp)(tf.constant(X)) + tf.random.uniform([2, 3]))
        with amanda.apply(Look(f"tensorflow::{asked}")) as look:
            session.run(y)
    assert (look.count, len(made)) == ({asked: 1}, int(is_searched))


def test_no_warning_about_functions_that_have_no_operator_that_a_tool_asks_for(caplog, monkeypatch):
    monkeypatch.setattr("amanda.drivers.tensorflow.front.unsupported._unshown._told", [])
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        y = tf.nn.relu(tf.function(random_numbers)(tf.constant(X)))
        with amanda.apply(edits("Relu", lambda y: y + 1)):
            session.run(y)
    assert [record for record in caplog.records if record.name == "amanda"] == []


def test_operators_of_an_imported_graph_have_no_line():
    with tf.Graph().as_default() as graph:
        tf.nn.relu(tf.constant(X), name="positive")
    events = Events()
    with tf.Graph().as_default() as imported, v1.Session(graph=imported) as session:
        tf.import_graph_def(graph.as_graph_def(), name="part")
        with amanda.apply(events):
            session.run("part/positive:0")
    assert events.places == {("Relu", "part", "")}


def test_functions_that_xla_compiles_are_left_alone(caplog):
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        y = tf.nn.relu(tf.function(tf.exp, jit_compile=True)(tf.constant(X)))
        vanilla, look = session.run(y), Look()
        with amanda.apply(look):
            assert np.array_equal(session.run(y), vanilla)
    assert look.count == {"Relu": 1}
    assert "XLA compiles them; use jit_compile=False" in caplog.text


def test_a_signature_of_a_saved_model_in_a_session(tmp_path):
    module = tf.Module()
    module.w = tf.Variable(W)
    module.serve = tf.function(lambda x: tf.nn.relu(x @ module.w), input_signature=[tf.TensorSpec([2, 3], tf.float32)])
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.serve})
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        loaded = v1.saved_model.load(session, [v1.saved_model.tag_constants.SERVING], str(tmp_path))
        signature = loaded.signature_def["serving_default"]
        fetch, feed = (next(iter(each.values())).name for each in (signature.outputs, signature.inputs))
        vanilla, look = session.run(fetch, {feed: X}), Look()
        with amanda.apply(look):
            assert np.array_equal(session.run(fetch, {feed: X}), vanilla)
        assert look.count == {"MatMul": 1, "Relu": 1}
        events = Events()
        with amanda.apply(events):
            session.run(fetch, {feed: X})
        assert events.places == {("MatMul", "", ""), ("Relu", "", "")}  # TensorFlow does not know where they were made
        with amanda.apply(edits("Relu", lambda y: y + 1)):
            np.testing.assert_array_equal(session.run(fetch, {feed: X}), vanilla + 1)
        assert np.array_equal(session.run(fetch, {feed: X}), vanilla)
    np.testing.assert_allclose(vanilla, np.maximum(X @ W, 0), rtol=1e-6)


def test_a_finalized_graph_and_another_session():
    model = Model(nested)
    model.graph.finalize()
    vanilla, look = model.both(), Look()
    with amanda.apply(look):
        assert equal(model.both(), vanilla)
        model.session = v1.Session(graph=model.graph)
        model.session.run(model.init)
        assert equal(model.both(), vanilla)
    assert look.count["MatMul"] == 4
    assert model.graph.finalized


def test_a_graph_with_copies_is_collected():
    model = Model(nested)
    with amanda.apply(Mask()):
        model.both()
    graph = weakref.ref(model.graph)
    model.session.close()
    del model
    gc.collect()
    assert graph() is None


def test_edges_lead_through_functions():
    from amanda.tools.graph import GraphTracing

    tracing, model = GraphTracing(), Model(cond)
    with amanda.apply(tracing):
        model.forward()
    name = {node: node.name.rpartition("::")[2] for node in tracing.graph}
    found = {(name[made], name[node]) for node in tracing.graph for made in tracing.graph.producers(node)}
    assert {("MatMul", "Relu"), ("Relu", "Mul"), ("Mul", "Square")} <= found
