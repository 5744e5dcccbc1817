"""Functions that a v1 graph calls: tf.function, and control flow of TensorFlow 2. Tools work on the operators in them."""

from __future__ import annotations

import gc
import weakref

import amanda
import numpy as np
import pytest
import tensorflow as tf
from called_models import (
    CALLS,
    MASK,
    RUNS,
    Events,
    Mask,
    Model,
    W,
    X,
    call,
    called_in_frames,
    case,
    close,
    cond,
    edits,
    equal,
    loop,
    nested,
)
from looking import Look
from real_programs import without_optimizer

v1 = tf.compat.v1


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
    assert tool.places == {(name, path.get(calls, "block"), "called_models.py") for name in ("MatMul", "Relu")}


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


def test_operators_of_an_imported_graph_have_no_line():
    with tf.Graph().as_default() as graph:
        tf.nn.relu(tf.constant(X), name="positive")
    events = Events()
    with tf.Graph().as_default() as imported, v1.Session(graph=imported) as session:
        tf.import_graph_def(graph.as_graph_def(), name="part")
        with amanda.apply(events):
            session.run("part/positive:0")
    assert events.places == {("Relu", "part", "")}


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
