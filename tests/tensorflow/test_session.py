"""v1 graphs: what a Session runs under tools. Numbers against models by hand, in numpy."""

import gc
import threading
import weakref

import amanda
import numpy as np
import pytest
import tensorflow as tf
from looking import Look
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session as client

v1 = tf.compat.v1

X = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]], np.float32)
W = (np.arange(6, dtype=np.float32).reshape(3, 2) / 7 - 0.3).astype(np.float32)
B = np.array([0.1, 0.2], np.float32)
MASK = np.array([[1, 0], [0, 1], [1, 1]], np.float32)


class Model:
    """sum((relu(x @ w + b) - 1)²), and a step of gradient descent on it."""

    def __init__(self, use_resource=True, rate=0.1):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = v1.placeholder(tf.float32, [None, 3], name="x")
            self.w = v1.get_variable("w", initializer=W, use_resource=use_resource)
            self.b = v1.get_variable("b", initializer=B, use_resource=use_resource)
            with tf.name_scope("dense"):
                self.z = tf.matmul(self.x, self.w) + self.b
                self.y = tf.nn.relu(self.z)
            self.loss = tf.reduce_sum(tf.square(self.y - 1.0))
            self.train = v1.train.GradientDescentOptimizer(rate).minimize(self.loss)
            self.init = v1.global_variables_initializer()
        self.session = self.new_session()

    def new_session(self):
        session = v1.Session(graph=self.graph)
        session.run(self.init)
        return session

    def step(self):
        return self.session.run([self.loss, self.train], {self.x: X})[0]

    def run(self, *fetches):
        return self.session.run(list(fetches), {self.x: X})


class ByHand:
    """The same in numpy."""

    def __init__(self, mask=1.0):
        self.w, self.b, self.mask = W.copy(), B.copy(), mask

    def step(self):
        z = X @ (self.w * self.mask) + self.b
        y = np.maximum(z, 0)
        loss = np.sum((y - 1) ** 2)
        gradient = 2 * (y - 1) * (z > 0)
        self.w -= np.float32(0.1) * (X.T @ gradient) * self.mask
        self.b -= np.float32(0.1) * gradient.sum(0)
        return loss


def masks(mask=MASK):
    """Weights and their gradients."""
    tool = amanda.Tool("masks")
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(lambda w: w * mask, inputs=[1]), ops="tensorflow::MatMul"
    )

    def mask_gradient(context):
        if context.grad_inputs[1] is not None:
            context.insert_after_backward_op(lambda gradient: gradient * mask, grad_inputs=[1])

    tool.add_inst_for_op(mask_gradient, ops="tensorflow::MatMul", backward=True, require_outputs=True)
    return tool


def edits(op, function, how="after"):
    tool = amanda.Tool(f"edits {op}")

    def analyze(context):
        {"after": context.insert_after_op, "replace": context.replace_op}[how](function)

    tool.add_inst_for_op(analyze, ops=f"tensorflow::{op}")
    return tool


def looks(seen=None):
    seen = [] if seen is None else seen
    tool = amanda.Tool("looks")

    def analyze(context):
        context.insert_before_op(lambda *values: seen.append(len(values)))
        context.insert_after_op(lambda *values: seen.append(len(values)))

    def analyze_backward(context):
        context.insert_before_backward_op(lambda *values: seen.append(len(values)))
        context.insert_after_backward_op(lambda *values: seen.append(len(values)))

    tool.add_inst_for_op(analyze)
    tool.add_inst_for_op(analyze_backward, backward=True)
    return tool


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "ref"])
def test_pruning_equals_a_model_that_is_masked_by_hand(use_resource):
    model, by_hand = Model(use_resource), ByHand(MASK)
    with amanda.apply(masks()):
        losses = [model.step() for _ in range(3)]
    np.testing.assert_allclose(losses, [by_hand.step() for _ in range(3)], rtol=1e-6)
    np.testing.assert_allclose(model.session.run(model.w), by_hand.w, rtol=1e-6)
    np.testing.assert_array_equal(model.session.run(model.w)[MASK == 0], W[MASK == 0])


def test_variables_are_shared_with_the_original():
    model, by_hand, masked = Model(), ByHand(), ByHand(MASK)
    scope = amanda.apply(masks())
    for step in range(4):
        reference = masked if step % 2 else by_hand
        if step % 2:
            with scope:
                loss = model.step()
        else:
            loss = model.step()
        np.testing.assert_allclose(loss, reference.step(), rtol=1e-6)
        by_hand.w = masked.w = reference.w
        by_hand.b = masked.b = reference.b


def test_looking_changes_no_bit():
    vanilla, model, seen = Model(), Model(), []
    losses = [vanilla.step() for _ in range(3)]
    with amanda.apply(looks(seen)):
        assert [model.step() for _ in range(3)] == losses
    assert len(seen) > 60
    assert vanilla.step() == model.step()


def test_routines_that_return_nothing_copy_nothing():
    model, runs, tool = Model(), [], amanda.Tool("looks")
    vanilla = set(model.graph.get_operations())

    def look(*values):
        runs.append(len(values))

    tool.add_inst_for_op(lambda context: context.insert_after_op(look))
    tool.add_inst_for_op(lambda context: context.insert_before_backward_op(look), backward=True)
    with amanda.apply(tool):
        model.step()
    taps = set(model.graph.get_operations()) - vanilla
    assert {op.type for op in taps} == {"AmandaTap", "NoOp"}  # the latter runs when all of them have
    assert [op.outputs for op in taps if op.outputs] == []
    assert len(runs) == len(taps) - 1


def test_nothing_is_built_for_the_second_run():
    model, analyses = Model(), []
    tool = masks()
    tool.add_inst_for_op(lambda context: analyses.append(context.op_id))
    with amanda.apply(tool):
        model.step()
        counts = model.graph.num_operations(), len(analyses)
        model.step()
        model.session.run(model.w)
        assert (model.graph.num_operations(), len(analyses)) == counts
    model.step()
    assert (model.graph.num_operations(), len(analyses)) == counts


@pytest.mark.parametrize("how", ["after", "replace"])
def test_gradients_of_an_edited_result(how):
    """The operator's own gradient is computed from its own result, or from its replacement's."""
    model = Model()
    with model.graph.as_default():
        gradient = tf.gradients(model.loss, model.w)[0]
    with amanda.apply(edits("Relu", np.zeros_like, how)):
        loss, got = model.run(model.loss, gradient)
    assert loss == X.shape[0] * 2
    passes = (X @ W + B > 0) if how == "after" else False
    np.testing.assert_allclose(got, X.T @ (np.full((2, 2), -2.0, np.float32) * passes), rtol=1e-6)


def test_a_fetched_result_is_the_edited_one():
    model = Model()
    with amanda.apply(edits("Relu", lambda y: y + 10)):
        np.testing.assert_allclose(model.run(model.y)[0], np.maximum(X @ W + B, 0) + 10, rtol=1e-6)
        np.testing.assert_allclose(model.run(model.z)[0], X @ W + B, rtol=1e-6)


def test_a_fed_intermediate_hides_what_is_before_it():
    model, seen = Model(), []
    tool = amanda.Tool("names")
    tool.add_inst_for_op(lambda context: seen.append(context.op.__name__))
    tool.add_inst_for_op(lambda context: context.insert_before_op(lambda z: 2 * z, inputs=[0]), ops="tensorflow::Relu")
    z = np.array([[1.0, -1.0]], np.float32)
    with amanda.apply(tool):
        np.testing.assert_array_equal(model.session.run(model.y, {model.z: z}), [[2.0, 0.0]])
    assert seen == ["Relu"]


def test_a_finalized_graph_stays_final():
    model = Model()
    model.graph.finalize()
    with amanda.apply(masks()):
        model.step()
    assert model.graph.finalized


@pytest.mark.parametrize("fetches", ["tensor", "operation", "structure", "options"])
def test_callables_that_were_made_before(fetches):
    model = Model()
    with model.graph.as_default():
        fixed = tf.nn.relu(tf.constant([-1.0, 2.0]), name="fixed")
        target = model.w.assign_add(tf.nn.relu(tf.ones_like(model.w)))
    made = {
        "tensor": lambda: model.session.make_callable(fixed),
        "operation": lambda: model.session.make_callable(target.op),
        "structure": lambda: model.session.make_callable({"a": fixed, "b": [fixed]}),
        "options": lambda: model.session.make_callable(fixed, accept_options=True),
    }[fetches]()
    with amanda.apply(edits("Relu", lambda y: y + 1)):
        result = made()
    if fetches == "operation":
        np.testing.assert_allclose(model.session.run(model.w), W + 2, rtol=1e-6)
        return
    for value in (result["a"], result["b"][0]) if fetches == "structure" else (result,):
        np.testing.assert_array_equal(value, [1.0, 3.0])


def test_callables_with_feeds():
    model = Model()
    made = model.session.make_callable(model.y, [model.x])
    vanilla = made(X)
    with amanda.apply(edits("Relu", lambda y: y + 1)):
        np.testing.assert_array_equal(made(X), vanilla + 1)
    np.testing.assert_array_equal(made(X), vanilla)


def test_callables_made_from_options():
    """As tf_keras makes them for fit() and predict()."""
    model = Model()
    callable_options = config_pb2.CallableOptions(feed=[model.x.name], fetch=[model.y.name], target=[model.train.name])
    made = model.session._make_callable_from_options(callable_options)
    with amanda.apply(edits("Relu", lambda y: y + 1)):
        (edited,) = made(X)
    np.testing.assert_allclose(edited, np.maximum(X @ W + B, 0) + 1, rtol=1e-6)
    assert np.abs(model.session.run(model.w) - W).max() > 0


def test_several_sessions_of_one_graph():
    model = Model()
    other = model.new_session()
    with amanda.apply(masks()):
        first = [model.step() for _ in range(2)]
        second = [other.run([model.loss, model.train], {model.x: X})[0] for _ in range(2)]
    assert first == second


def test_several_threads():
    model, wrong = Model(), []
    scope = amanda.apply(edits("Relu", lambda y: y + 1))
    vanilla = model.run(model.y)[0]

    def work(tools):
        for _ in range(10):
            if tools:
                with scope:
                    result = model.run(model.y)[0] - 1
            else:
                result = model.run(model.y)[0]
            if not np.allclose(result, vanilla):
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_original_in_a_replacement():
    model = Model()
    vanilla = model.run(model.z, model.y)
    tool = amanda.Tool("calls")
    called = []

    def analyze(context):
        op = context.op
        context.replace_op(lambda *inputs: called.append(1) or op(*inputs))

    tool.add_inst_for_op(analyze, ops=["tensorflow::MatMul", "tensorflow::Relu", "tensorflow::AddV2"])
    with amanda.apply(tool):
        for expected, got in zip(vanilla, model.run(model.z, model.y), strict=True):
            np.testing.assert_array_equal(got, expected)
    assert len(called) == 3


def test_an_error_is_the_routines_own():
    model = Model()
    with amanda.apply(edits("Relu", lambda y: 1 / 0)), pytest.raises(ZeroDivisionError):
        model.run(model.y)
    model.run(model.y)


def test_an_operator_with_a_resource_cannot_be_replaced():
    model = Model()
    tool = amanda.Tool("replaces")
    tool.add_inst_for_op(
        lambda context: context.replace_op(lambda *_: None), ops="tensorflow::ResourceApplyGradientDescent"
    )
    with amanda.apply(tool), pytest.raises(amanda.Error, match="one of its operands is a resource tensor"):
        model.step()
    assert model.step() == Model().step()


def test_the_gradients_that_an_optimizer_applies_can_be_edited():
    model = Model()
    tool = amanda.Tool("stops")
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(np.zeros_like, inputs=[2]),
        ops="tensorflow::ResourceApplyGradientDescent",
    )
    with amanda.apply(tool):
        model.step()
    np.testing.assert_array_equal(model.session.run(model.w), W)


def test_a_list_is_one_operand():
    seen = []
    tool = amanda.Tool("doubles")
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(lambda values: [2 * value for value in values], inputs=[0]),
        ops="tensorflow::ConcatV2",
    )
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(lambda values: seen.append([list(v) for v in values]), inputs=[0]),
        ops="tensorflow::ConcatV2",
    )
    with tf.Graph().as_default(), v1.Session() as session:
        joined = tf.concat([tf.constant([1.0, 2.0]), tf.constant([3.0])], 0)
        with amanda.apply(tool):
            np.testing.assert_array_equal(session.run(joined), [2.0, 4.0, 6.0])
    assert seen == [[[2.0, 4.0], [6.0]]]


def test_a_graph_with_taps_is_collected():
    model = Model()
    with amanda.apply(masks()):
        model.step()
    graph = weakref.ref(model.graph)
    model.session.close()
    del model
    gc.collect()
    assert graph() is None


@pytest.mark.parametrize("batch", [None, 2])
def test_random_streams_are_those_of_the_original(batch):
    """Dropout, behind an edit: the numbers drawn are the same, whether the shape is known or not."""

    def build():
        graph = tf.Graph()
        with graph.as_default():
            x = v1.placeholder(tf.float32, [batch, 3])
            kept = v1.nn.dropout(tf.nn.relu(x), rate=0.5, seed=7)
            after = tf.random.uniform([2], seed=3)
        return v1.Session(graph=graph), x, [kept, after]

    (session, x, fetches), (vanilla, same_x, same_fetches) = build(), build()
    scope = amanda.apply(edits("Relu", lambda y: y + 1))
    for step in range(4):
        expected = vanilla.run(same_fetches, {same_x: np.abs(X) + 1})
        if step % 2:
            with scope:
                got = session.run(fetches, {x: np.abs(X)})
        else:
            got = session.run(fetches, {x: np.abs(X) + 1})
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_partial_runs_are_vanilla_and_say_so(caplog):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [])
        y = tf.nn.relu(x)
        with amanda.apply(edits("Relu", lambda y: y + 1)):
            handle = session.partial_run_setup([y], [x])
            assert session.partial_run(handle, y, {x: 2.0}) == 2.0
    assert [record.getMessage() for record in caplog.records if record.name == "amanda"] == [
        "[tensorflow] partial_run() runs without tools; use run()"
    ]


def test_a_scope_for_each_run_makes_the_graph_grow_and_says_so(caplog, monkeypatch):
    monkeypatch.setattr("amanda.drivers.tensorflow.front.session._MANY_CONES", 2)
    model = Model()
    for _ in range(2):
        with amanda.apply(edits("Relu", lambda y: y)):
            model.run(model.y)
    assert caplog.records == []
    with amanda.apply(edits("Relu", lambda y: y)):
        model.run(model.y)
    (record,) = caplog.records
    assert "enter the same scope object again instead" in record.getMessage()


@pytest.mark.parametrize("gradient_first", [True, False])
def test_an_operator_shares_its_run_with_its_gradient_in_any_order_of_fetches(gradient_first):
    """The backward operators of a product do not need its result: only the taps tell them to wait."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (2, 3))
        w = tf.compat.v1.get_variable("w", (3, 4), initializer=tf.compat.v1.ones_initializer())
        result = x @ w
        gradient = tf.gradients(result, w)[0]
        ready = tf.compat.v1.global_variables_initializer()
    seen = []

    class Shared(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyze, ops="MatMul")

        def analyze(self, context):
            context.insert_after_op(self.forward, with_run=True)
            context.insert_before_backward_op(self.backward, with_run=True)

        def forward(self, output, run):
            run["forward"] = True

        def backward(self, gradient, run):
            seen.append(run.get("forward"))

    fetches = [gradient, result] if gradient_first else [result, gradient]
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(ready)
        with amanda.apply(Shared()):
            for _ in range(20):
                session.run(fetches, {x: np.ones((2, 3))})
    assert seen == [True] * 20


@pytest.mark.parametrize("in_loop", [False, True])
def test_a_run_has_one_more_target_however_many_routines_run(in_loop, monkeypatch):
    """A run has a price for each target. Operators in a loop are targets of their own."""
    counts, model, look = [], Model(), Look()
    enabled = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    with model.graph.as_default():
        y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y)), (0, model.z))[1] if in_loop else model.y
    if enabled:
        v1.enable_control_flow_v2()
    run = client.tf_session.TF_SessionRun_wrapper

    def counted(session, options, feeds, fetches, targets, metadata):
        counts.append(len(targets))
        return run(session, options, feeds, fetches, targets, metadata)

    monkeypatch.setattr(client.tf_session, "TF_SessionRun_wrapper", counted)
    model.run(y)
    scope = amanda.apply(look)
    for _ in range(2):
        with scope:
            model.run(y)
    assert counts[0] == 0
    assert counts[1] == counts[2]
    assert (counts[1] == 1) is not in_loop
    assert look.count == {"MatMul": 2, "AddV2": 2} | ({"Sin": 6, "Less": 8, "AddV2": 8} if in_loop else {"Relu": 2})
