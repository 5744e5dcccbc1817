"""Operators in the bodies of If, Loop and Scan: shown, looked at, edited, with the bits of the session."""

import amanda
import numpy as np
import onnx
import pytest
import torch
from export_models import exported
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from sessions import BIAS, REGIMES, WEIGHT, Every, X, bits, flat, model, session
from torch import nn

LEVELS = "DISABLED", *(pytest.param(name, marks=pytest.mark.long) for name in ("BASIC", "EXTENDED")), "ALL"
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, kind=FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def body(name, nodes, inputs, outputs, constants=()):
    made = [numpy_helper.from_array(np.asarray(array), key) for key, array in dict(constants).items()]
    return helper.make_graph(nodes, name, inputs, [onnx.ValueInfoProto(name=each) for each in outputs], made)


def node(op, inputs, outputs, name="", **attributes):
    return helper.make_node(op, inputs, outputs, name, **attributes)


def linear(prefix=""):
    """A product with constants that it captures."""
    return [
        node("MatMul", [f"{prefix}h", "W"], [f"{prefix}m"], "/fc/MatMul"),
        node("Add", [f"{prefix}m", "b"], [f"{prefix}a"], "/fc/Add"),
        node("Relu", [f"{prefix}a"], [f"{prefix}r"], "/act/Relu"),
    ]


COUNTER = [info("i", INT, []), info("on", BOOL, [])]


def loop(*, one_element=False, **inputs):
    """h = relu(h W + b) / 2, some times, while its sum is below 1000; each h is stacked."""
    counter = [info("i", INT, [1]), info("on", BOOL, [1])] if one_element else COUNTER
    nodes = [
        *linear(),
        node("Mul", ["r", "half"], ["next"]),
        node("ReduceSum", ["next"], ["sum"], keepdims=0),
        node("Less", ["sum", "limit"], ["goes"]),
        node("Identity", ["next"], ["kept"]),
        *([node("Unsqueeze", ["goes", "zero"], ["goes1"])] if one_element else []),
    ]
    outputs = ["goes1" if one_element else "goes", "next", "kept"]
    constants = {"half": np.float32(0.5), "limit": np.float32(1000), "zero": np.array([0])}
    inner = body("body", nodes, [*counter, info("h", FLOAT, [3, 8])], outputs, constants)
    whole = node("Loop", ["times", "start", "x"], ["last", "all"], "loop", body=inner)
    kinds = {"x": FLOAT, "times": INT, "start": BOOL}
    return model([whole, node("Neg", ["last"], ["y"])], inputs=kinds, outputs=["y", "all"])


def branches():
    """Bodies with values of one name, one of which a branch captures from before it."""
    taken = body("taken", [*linear(), node("Neg", ["r"], ["out"])], [], ["out"])
    other = body("other", [node("Mul", ["h", "two"], ["m"]), node("Tanh", ["m"], ["out"])], [], ["out"], {"two": X * 2})
    nodes = [node("Abs", ["x"], ["h"]), node("If", ["flag"], ["y"], "/choice/If", then_branch=taken, else_branch=other)]
    return model(nodes, inputs={"x": FLOAT, "flag": BOOL})


def scan(**attributes):
    """A running product of the rows or columns."""
    nodes = [*linear(), node("Add", ["r", "row"], ["next"]), node("Tanh", ["next"], ["kept"])]
    inner = body("body", nodes, [info("h", FLOAT, [8]), info("row", FLOAT, [8])], ["next", "kept"])
    whole = node("Scan", ["start", "x"], ["y", "all"], "scan", body=inner, num_scan_inputs=1, **attributes)
    return model([whole], inputs={"x": FLOAT, "start": FLOAT}, outputs=["y", "all"])


def nested():
    """A Loop in which an If has a Loop."""
    deepest = body(
        "deepest",
        [node("Sin", ["d"], ["s"]), node("Identity", ["on2"], ["goes2"])],
        [info("i2", INT, []), info("on2", BOOL, []), info("d", FLOAT, [3, 8])],
        ["goes2", "s"],
    )
    taken = body("taken", [node("Loop", ["two", "", "r"], ["out"], body=deepest)], [], ["out"])
    other = body("other", [node("Sub", ["r", "h"], ["out"])], [], ["out"])
    nodes = [
        *linear(),
        node("Greater", ["i", "zero"], ["flag"]),
        node("If", ["flag"], ["next"], then_branch=taken, else_branch=other),
        node("Identity", ["on"], ["goes"]),
    ]
    constants = {"zero": np.array(0), "two": np.array(2)}
    inner = body("body", nodes, [*COUNTER, info("h", FLOAT, [3, 8])], ["goes", "next"], constants)
    return model([node("Loop", ["times", "", "x"], ["y"], body=inner)], inputs={"x": FLOAT, "times": INT})


def grows():
    """The carried value has another shape in each iteration."""
    nodes = [node("Concat", ["h", "x"], ["next"], axis=0), node("Identity", ["on"], ["goes"])]
    inner = body("body", nodes, [*COUNTER, info("h", FLOAT, ["n", 8])], ["goes", "next"])
    return model([node("Loop", ["times", "", "x"], ["y"], body=inner)], inputs={"x": FLOAT, "times": INT}, constants={})


def passes_on():
    """A loop that gives an input back as it is."""
    inner = body("body", [node("Identity", ["on"], ["goes"])], [*COUNTER, info("h", FLOAT, [3, 8])], ["goes", "h"])
    return model([node("Loop", ["times", "", "x"], ["y"], body=inner)], inputs={"x": FLOAT, "times": INT}, constants={})


def times(count):
    return {"x": X, "times": np.array(count)}


ON = {"start": np.array(True)}
BACKWARDS = {"scan_input_directions": [1], "scan_output_directions": [1]}
MODELS = {
    "loop": (loop(), times(4) | ON),
    "loop that ends itself": (loop(), {"x": X * 500, "times": np.array(100), **ON}),
    "loop with a number of one element": (loop(one_element=True), times(3) | ON),
    "loop that does not run": (loop(), times(0) | ON),
    "loop that does not start": (loop(), times(3) | {"start": np.array(False)}),
    "then": (branches(), {"x": X, "flag": np.array(True)}),
    "else": (branches(), {"x": X, "flag": np.array([False])}),
    "scan": (scan(), {"x": X, "start": X[0]}),
    "scan backwards": (scan(**BACKWARDS), {"x": X, "start": X[0]}),
    "scan of columns": (scan(scan_input_axes=[1], scan_output_axes=[1]), {"x": X.T.copy(), "start": X[0]}),
    "nested": (nested(), times(3)),
    "shapes that change": (grows(), times(3)),
    "an input as a result": (passes_on(), times(2)),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MODELS)
def test_bits_are_those_of_the_session(name, level):
    proto, feeds = MODELS[name]
    opened = session(proto, level)
    alone = bits(opened.run(None, feeds))
    for regime in REGIMES:
        tool = Every(regime)
        with amanda.apply(tool):
            for _ in range(2):
                assert bits(opened.run(None, feeds)) == alone, regime
        assert tool.evidence().is_complete
    assert bits(opened.run(None, feeds)) == alone


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_bits_are_those_of_the_session_in_models_of_onnxs_own_tests():
    """All models with control flow in the standard's tests that this ONNX Runtime takes: sequences and optionals, too."""
    from onnx.backend.test.case.node import collect_testcases

    models = shown = 0
    for case in collect_testcases(None):
        proto = case.model
        if not any(each.op_type in ("If", "Loop", "Scan") for each in proto.graph.node):
            continue
        proto.ir_version = min(proto.ir_version, 10)
        feeds = dict(zip([each.name for each in proto.graph.input], case.data_sets[0][0], strict=True))
        for level in ("DISABLED", "ALL"):
            try:
                opened = session(proto, level, log_severity_level=4)
                alone = content(opened.run(None, feeds))
            except Exception:  # of the session alone: it does not take the model, or the inputs
                continue
            models += 1
            for regime in ("look", "before", "after"):
                tool = Every(regime)
                with amanda.apply(tool):
                    assert content(opened.run(None, feeds)) == alone, (case.name, level, regime)
            shown += len(tool.places) > len(proto.graph.node)
    assert models >= 40
    assert shown >= 20


def content(results):
    return [content(one) if isinstance(one, list) else one if one is None else bits([one]) for one in results]


def test_what_the_operator_refuses_it_refuses_in_a_scope():
    """A Scan of no elements."""
    opened, feeds = session(scan()), {"x": X[:0], "start": X[0]}
    with pytest.raises(Exception, match="Scan") as alone:
        opened.run(None, feeds)
    with amanda.apply(Every()), pytest.raises(type(alone.value)) as scoped:
        opened.run(None, feeds)
    assert str(scoped.value) == str(alone.value)


def test_results_are_the_programs_own():
    """Also where a body gives back what it got: a program may write to its results."""
    opened, x = session(passes_on()), X.copy()
    with amanda.apply(Every()):
        (result,) = opened.run(None, {"x": x, "times": np.array(2)})
    result += 1
    assert bits([x]) == bits([X])


# ---- what is seen ---------------------------------------------------------------------------------------------------


class Seen(amanda.Tool):
    """The first result of each execution, by the name of the value."""

    def __init__(self):
        super().__init__()
        self.values = []
        self.add_inst_for_op(self.analyze)

    def analyze(self, context):
        name = flat(context.outputs)[0].name
        context.insert_after_op(lambda *results: self.values.append((name, flat(results)[0].copy())))


def seen(proto, feeds, level="DISABLED"):
    tool = Seen()
    with amanda.apply(tool):
        session(proto, level).run(None, feeds)
    return tool.values


def by_reference(graph, feeds, around=()):
    """Every value of a body, by onnx's own evaluator: the body is a model there, with what it captures as inputs."""
    names = [output for each in graph.node for output in each.output]
    given = {**dict(around), **feeds}
    kinds = {bool: BOOL, np.int64: INT, np.float32: FLOAT}
    inputs = [info(name, kinds.get(value.dtype.type, BOOL), None) for name, value in given.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    alone = helper.make_graph(list(graph.node), "alone", inputs, outputs, list(graph.initializer))
    made = helper.make_model(alone, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return list(zip(names, ReferenceEvaluator(made).run(None, given), strict=True))


def body_of(proto, op, name):
    (found,) = (each for each in proto.graph.node if each.op_type == op)
    return next(each.g for each in found.attribute if each.name == name)


AROUND = {"W": WEIGHT, "b": BIAS}


def check(values, expected):
    assert [name for name, _ in values] == [name for name, _ in expected]
    for (name, value), (_, reference) in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-6, err_msg=name)


def test_each_value_of_each_iteration_is_that_of_the_reference():
    proto, feeds = MODELS["loop"]
    graph, h, expected = body_of(proto, "Loop", "body"), X, []
    for i in range(4):
        expected += by_reference(graph, {"i": np.array(i), "on": np.array(True), "h": h}, AROUND)
        h = dict(expected)["next"]
    y, _ = ReferenceEvaluator(proto).run(None, feeds)  # it concatenates what ONNX stacks
    check(seen(proto, feeds), [*expected, ("last", -y), ("y", y)])


@pytest.mark.parametrize(("flag", "branch"), [(True, "then_branch"), (False, "else_branch")])
def test_the_values_of_the_branch_that_ran_are_those_of_the_reference(flag, branch):
    proto, feeds = branches(), {"x": X, "flag": np.array(flag)}
    inside = by_reference(body_of(proto, "If", branch), {}, AROUND | {"h": np.abs(X)})
    # In the second branch, names that stand for other values in the first have a number.
    numbered = {"m": "m@2", "out": "out@2"} if branch == "else_branch" else {}
    inside = [(numbered.get(name, name), value) for name, value in inside]
    (y,) = ReferenceEvaluator(proto).run(None, feeds)
    check(seen(proto, feeds), [("h", np.abs(X)), *inside, ("y", y)])


def test_the_values_of_a_scan_backwards_are_those_of_the_reference():
    proto, feeds = MODELS["scan backwards"]
    graph, h, expected = body_of(proto, "Scan", "body"), X[0], []
    for row in X[::-1]:
        expected += by_reference(graph, {"h": h, "row": row}, AROUND)
        h = dict(expected)["next"]
    check(seen(proto, feeds), [*expected, ("y", h)])


def test_fused_operators_in_a_body_are_shown():
    """ONNX Runtime optimizes bodies, too."""
    names = set()
    tool = amanda.Tool("names")
    tool.add_inst_for_op(lambda context: names.add(context.op.name))
    proto, feeds = MODELS["loop"]
    with amanda.apply(tool):
        session(proto, "ALL").run(None, feeds)
    assert "com.microsoft::FusedGemm" in names


def test_operators_in_bodies_have_ids_of_their_own_in_each_process():
    ids = []
    for _ in range(2):
        found, tool = {}, amanda.Tool("ids")
        tool.add_inst_for_op(lambda context, found=found: found.update({flat(context.outputs)[0].name: context.op_id}))
        with amanda.apply(tool):
            session(branches(), "DISABLED").run(None, {"x": X, "flag": np.array(True)})
        ids.append(found)
    assert ids[0] == ids[1]
    assert len({*ids[0].values()}) == len(ids[0]) == 8  # both branches, though one runs
    assert len({"m", "m@2"} & ids[0].keys()) == 2


def test_a_constant_and_a_shape_in_a_body_are_known():
    shapes, tool = {}, amanda.Tool("shapes")
    tool.add_inst_for_op(
        lambda context: shapes.update({each.name: (each.shape, each.is_constant) for each in context.inputs}),
        ops="MatMul",
    )
    with amanda.apply(tool):
        session(loop(), "DISABLED").run(None, MODELS["loop"][1])
    assert shapes == {"h": ((3, 8), False), "W": ((8, 8), True)}


@pytest.mark.parametrize("key", ["loop that does not run", "loop that does not start"])
def test_a_body_that_does_not_run_is_not_seen(key):
    proto, feeds = MODELS[key]
    assert [name for name, _ in seen(proto, feeds)] == ["last", "y"]


# ---- edits ----------------------------------------------------------------------------------------------------------


def edits(schedule, ops=None):
    tool = amanda.Tool("edits")
    tool.add_inst_for_op(schedule, ops=ops)
    return tool


def with_neg(proto, graph, after):
    """The model in which a body's value is negated by a node of its own."""
    at = next(i for i, each in enumerate(graph.node) if after in each.output)
    old = list(graph.node)
    old[at].output[:] = ["unnegated"]
    del graph.node[:]
    graph.node.extend([*old[: at + 1], node("Neg", ["unnegated"], [after]), *old[at + 1 :]])
    return proto


@pytest.mark.parametrize(
    ("made", "op", "name", "key"),
    [
        (loop, "Loop", "body", "loop"),
        (branches, "If", "then_branch", "then"),
        (scan, "Scan", "body", "scan"),
    ],
)
def test_an_edit_is_that_of_a_model_edited_by_hand(made, op, name, key):
    proto, edited, (_, feeds) = made(), made(), MODELS[key]
    by_hand = with_neg(edited, body_of(edited, op, name), "r")
    expected = bits(session(by_hand, "DISABLED").run(None, feeds))
    opened = session(proto, "DISABLED")
    assert bits(opened.run(None, feeds)) != expected
    with amanda.apply(edits(lambda context: context.insert_after_op(lambda y: -y), "Relu")):
        assert bits(opened.run(None, feeds)) == expected


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("key", ["loop", "then", "scan", "nested"])
def test_a_weight_that_a_body_captures_is_edited_as_by_hand(key, level):
    proto, feeds = MODELS[key]
    halved = onnx.ModelProto()
    halved.CopyFrom(proto)
    for each in halved.graph.initializer:
        if each.name == "W":
            each.CopyFrom(numpy_helper.from_array(WEIGHT * np.float32(0.5), "W"))

    def analyze(context):
        for position, operand in enumerate(context.inputs):
            if getattr(operand, "name", "") == "W":
                context.insert_before_op(lambda w: w * np.float32(0.5), inputs=[position])

    with amanda.apply(edits(analyze)):
        results = session(proto, level).run(None, feeds)
    assert bits(results) == bits(session(halved, level).run(None, feeds))


def test_a_body_gets_what_an_edit_before_it_has_made():
    proto, feeds = branches(), {"x": X, "flag": np.array(False)}
    tool = edits(lambda context: context.insert_after_op(lambda h: h + 1), "Abs")
    with amanda.apply(tool, Every()):
        (y,) = session(proto, "DISABLED").run(None, feeds)
    np.testing.assert_allclose(y, np.tanh((np.abs(X) + 1) * X * 2), rtol=1e-5)


def test_a_routine_in_place_of_the_operator_runs_its_body_with_taps():
    proto, feeds = MODELS["loop"]
    runs = []

    def schedule(context):
        if context.op.__name__ == "Loop":
            context.replace_op(lambda n, on, x, op: op(np.array(n + 1), on, x), op=context.op)
        if context.op.__name__ == "Relu":
            context.insert_after_op(lambda y: runs.append(y))

    with amanda.apply(edits(schedule)):
        results = session(proto, "DISABLED").run(None, feeds)
    assert len(runs) == 5
    assert bits(results) == bits(session(proto, "DISABLED").run(None, times(5) | ON))


def test_results_that_no_longer_stack_are_named():
    proto, feeds = MODELS["loop"]
    sizes = iter(range(1, 4))
    tool = edits(lambda context: context.insert_after_op(lambda y: np.ones((next(sizes), 8), np.float32)), "Identity")
    with amanda.apply(tool), pytest.raises(amanda.Error, match=r"Loop can't stack results of its body: they have"):
        session(proto, "DISABLED").run(None, {**feeds, "times": np.array(2)})


def test_bodies_of_other_operators_are_not_shown_and_evidence_says_so():
    """A Scan of the first version has batches."""
    nodes = [node("Identity", ["h"], ["next"]), node("Tanh", ["row"], ["kept"])]
    inner = body("body", nodes, [info("h", FLOAT, [8]), info("row", FLOAT, [8])], ["next", "kept"])
    whole = node("Scan", ["", "start", "x"], ["y", "all"], "scan", body=inner, num_scan_inputs=1)
    opened = session(model([whole], inputs={"x": FLOAT, "start": FLOAT}, outputs=["y", "all"], constants={}, opset=8))
    feeds, tool = {"x": X[None], "start": X[:1]}, Every()
    alone = bits(opened.run(None, feeds))
    with amanda.apply(tool):
        assert bits(opened.run(None, feeds)) == alone
    assert "operator Scan: tools are not shown the operators in its bodies" in tool.evidence().not_looked_at


# ---- programs of PyTorch --------------------------------------------------------------------------------------------


class Conditional(nn.Module):
    def __init__(self):
        super().__init__()
        self.taken, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: torch.relu(self.taken(x)), lambda x: self.other(x).tanh() + 1, (x,))


class WhileLoop(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, n, x):
        step = lambda n, x: (n + 1, torch.relu(self.fc(x)))  # noqa: E731
        return torch._higher_order_ops.while_loop(lambda n, x: n < 3, step, (n, x))


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, n: int):
        y = x
        for _ in range(n):
            y = torch.relu(self.fc(y))
            y = y - 0.5 if bool(y.sum() > 0) else torch.tanh(y)
        return y


def export_of(name, folder):
    torch.manual_seed(0)
    x, path = torch.from_numpy(X), folder / f"{name}.onnx"
    if name == "scripted":
        torch.onnx.export(torch.jit.script(Scripted()), (x, torch.tensor(3)), path, dynamo=False, verbose=False)
        return path
    made, arguments = {"cond": (Conditional(), (x,)), "while_loop": (WhileLoop(), (torch.tensor(0), x))}[name]
    return exported(made.eval(), arguments, path)


INSIDE = {"cond": {"Gemm"}, "while_loop": {"Gemm"}, "scripted": {"Gemm", "Sub", "Tanh"}}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", INSIDE)
def test_control_flow_of_pytorch(name, tmp_path):
    path = export_of(name, tmp_path)
    for level in ("DISABLED", "BASIC", "EXTENDED", "ALL"):
        opened = session(path, level)
        feeds = [
            dict(zip([each.name for each in opened.get_inputs()], given, strict=True))
            for given in (
                [[X], [np.abs(X)], [-np.abs(X)]]
                if name == "cond"
                else [[np.array(n), X] if name == "while_loop" else [X, np.array(n)] for n in (0, 2, 5)]
            )
        ]
        alone = [bits(opened.run(None, each)) for each in feeds]
        for regime in REGIMES:
            tool, names = Every(regime), set()
            tool.add_inst_for_op(lambda context, names=names: names.add(context.op.__name__.removeprefix("Fused")))
            with amanda.apply(tool):
                assert [bits(opened.run(None, each)) for each in feeds] == alone, (level, regime)
            assert names >= INSIDE[name]
            assert tool.evidence().is_complete
    if name != "scripted":
        assert all(source.startswith(__file__) for _, source in tool.places.values())  # no line of generated code
