"""What is an operator: kinds of arguments and results, names, nesting, operators of one's own."""

import amanda
import pytest
import torch
import torch.nn.functional as F

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


def inputs_of(name, call, **options):
    found = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: found.append(c.inputs), ops=name, **options)
    with amanda.apply(tool):
        call()
    return found[0]


def outputs_of(name, call):
    found = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: found.append(c.outputs), ops=name, require_outputs=True)
    with amanda.apply(tool):
        call()
    return found[0]


# ---- arguments -------------------------------------------------------------------------------------------------------


def test_an_optional_tensor():
    w = torch.ones(3, 2)
    assert inputs_of("linear", lambda: F.linear(X, w))[2] is None
    bias = torch.ones(3)
    assert inputs_of("linear", lambda: F.linear(X, w, bias))[2] is bias


def test_a_list_of_tensors():
    (tensors, dim) = inputs_of("stack", lambda: torch.stack([X, X], 1))
    assert (type(tensors), tensors[0] is X, tensors[1] is X, dim) == (list, True, True, 1)


def test_a_list_of_optional_tensors():
    rows = torch.tensor([0])
    (x, indices) = inputs_of("index", lambda: X[:, rows])
    assert x is X
    assert indices[0] is None
    assert indices[1] is rows


@pytest.mark.parametrize(
    ("name", "call", "position", "value"),
    [
        ("add", lambda: torch.add(X, X, alpha=2), 2, 2),
        ("add", lambda: torch.add(X, X, alpha=2.5), 2, 2.5),
        ("sum", lambda: X.sum(dim=[0], keepdim=True), 1, [0]),
        ("sum", lambda: X.sum(dim=[0], keepdim=True), 2, True),
        ("clamp", lambda: X.clamp(min=0), 2, None),
        ("to", lambda: X.to(torch.float64), 1, torch.float64),
        ("empty", lambda: torch.empty(2, 3, dtype=torch.int32), 0, [2, 3]),
        ("empty", lambda: torch.empty(2, dtype=torch.int32), 1, torch.int32),
        ("empty", lambda: torch.empty(2, layout=torch.strided), 2, torch.strided),
        ("empty", lambda: torch.empty(2, device="cpu"), 3, torch.device("cpu")),
        ("empty", lambda: torch.empty(2, memory_format=torch.contiguous_format), 5, torch.contiguous_format),
        ("contiguous", lambda: X.T.contiguous(memory_format=torch.contiguous_format), 1, torch.contiguous_format),
        ("einsum", lambda: torch.einsum("ij->ji", X), 0, "ij->ji"),
        ("div", lambda: torch.div(X, X, rounding_mode="floor"), 2, "floor"),
        ("dropout", lambda: F.dropout(X, 0.25, False), 1, 0.25),
        ("pow", lambda: X**2, 1, 2),
        ("full", lambda: torch.full((2,), True), 1, True),
        ("upsample_bilinear2d", lambda: F.interpolate(X[None, None], scale_factor=2, mode="bilinear"), 3, [2.0, 2.0]),
    ],
)
def test_what_is_no_tensor_is_shown_as_python_knows_it(name, call, position, value):
    got = inputs_of(name, call)[position]
    assert (type(got), got) == (type(value), value)


def test_a_generator():
    generator = torch.Generator().manual_seed(3)
    shown = inputs_of("rand", lambda: torch.rand(2, generator=generator))[1]
    assert isinstance(shown, torch.Generator)
    assert shown.initial_seed() == 3


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "call", "kinds"),
    [
        ("relu", lambda: torch.relu(X), [torch.Tensor]),
        ("max", lambda: torch.max(X, 1), [torch.Tensor, torch.Tensor]),
        ("split", lambda: X.split(1), [list]),
        ("meshgrid", lambda: torch.meshgrid(X[0], X[1], indexing="ij"), [list]),
        ("item", lambda: X[0, 0].item(), [float]),
        ("item", lambda: torch.tensor(3).item(), [int]),
        ("is_nonzero", lambda: bool(X[0, 0]), [bool]),
        ("equal", lambda: torch.equal(X, X), [bool]),
        ("result_type", lambda: torch.result_type(X, 2), [torch.dtype]),
        ("_foreach_add_", lambda: torch._foreach_add_([torch.ones(1)], 1.0), []),
        ("_assert_async", lambda: torch._assert_async(torch.tensor(True)), []),
        ("linalg_svd", lambda: torch.linalg.svd(X), [torch.Tensor] * 3),
        ("unique_dim", lambda: torch.unique(X, dim=0), [torch.Tensor] * 3),
    ],
)
def test_results(name, call, kinds):
    assert [type(output) for output in outputs_of(name, call)] == kinds


# ---- ways to call ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: X + X, ["add"]),
        (lambda: X + 1, ["add"]),
        (lambda: 2 - X, ["rsub"]),
        (lambda: -X, ["neg"]),
        (lambda: X @ X, ["matmul"]),
        (lambda: X > 0, ["gt"]),
        (lambda: X[0], ["select"]),
        (lambda: X[0:1, None], ["slice", "unsqueeze"]),
        (lambda: X[torch.tensor([0])], ["index"]),
        (lambda: X.relu(), ["relu"]),
        (lambda: torch.relu(X), ["relu"]),
        (lambda: F.relu(X), ["relu"]),
        (lambda: torch.nn.ReLU()(X), ["relu"]),
        (lambda: torch.ops.aten.relu(X), ["relu"]),
        (lambda: torch.ops.aten.relu.default(X), ["relu"]),
        (lambda: torch._C._VariableFunctions.relu(X), ["relu"]),
        (lambda: list(X), ["unbind"]),
        (lambda: F.scaled_dot_product_attention(X[None], X[None], X[None]), ["scaled_dot_product_attention"]),
        (lambda: F.layer_norm(X, (2,)), ["layer_norm"]),
        (lambda: F.cross_entropy(X, torch.tensor([0, 1])), ["cross_entropy_loss"]),
    ],
)
def test_every_way_to_call_is_seen_once(call, names, recorder):
    call()  # what is made once is made before
    tool = recorder(
        ops=[*names, "linear", "addmm", "mm", "convolution", "native_layer_norm", "clamp_min", "as_strided"]
    )
    with amanda.apply(tool):
        call()
    assert [name for name in tool.ran if name in names] == names


def test_an_rnn_is_one_operator(recorder):
    tool, rnn = recorder(), torch.nn.RNN(2, 3, num_layers=4)
    with amanda.apply(tool):
        rnn(torch.ones(5, 1, 2))
    assert tool.ran.count("rnn_tanh") == 1
    assert not {"linear", "addmm", "tanh"} & set(tool.ran)


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ops", "seen"),
    [
        ("relu", ["relu"]),
        ("aten::relu", ["relu"]),
        ("prims::relu", []),
        ("relu*", ["relu", "relu_"]),
        ("re[l]u", ["relu"]),
        ("aten::*add*", ["add"]),
        ("add", ["add"]),
        ("add.Tensor", ["add"]),
        ("add.Scalar", []),
        ("aten::add.*", ["add"]),
        ("*.Tensor", ["add"]),
        (["relu", "add"], ["relu", "add"]),
        (("relu", "amanda_test::no_such_operator"), ["relu"]),
        ({"relu"}, ["relu"]),
    ],
)
def test_operators_are_asked_for_by_name(ops, seen, recorder):
    tool, y = recorder(ops=ops), X.clone()
    with amanda.apply(tool):
        torch.relu(X)
        torch.relu_(y)
        X + X
    assert tool.ran == seen


# ---- nesting ---------------------------------------------------------------------------------------------------------


def depths(call, **options):
    found = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: found.append((c.op.__name__, c.depth)), **options)
    with amanda.apply(tool):
        call()
    return found


def linear():
    F.linear(X, X, X[0])


def test_a_tool_sees_the_outermost_call():
    assert [name for name, _ in depths(linear)] == ["select", "linear"]


def test_a_tool_sees_the_outermost_among_the_types_it_asked_for():
    assert depths(linear, ops="addmm") == [("addmm", 0)]
    assert depths(linear, ops=["addmm", "linear"]) == [("linear", 0)]


def test_a_nested_tool_sees_inner_calls_with_their_depth():
    assert depths(linear, ops=["addmm", "linear"], nested=True) == [("linear", 0), ("addmm", 1)]
    found = depths(linear, nested=True)
    assert ("linear", 0) in found
    assert ("addmm", 1) in found
    assert max(depth for _, depth in found) >= 2


def test_what_one_tool_sees_does_not_depend_on_the_others(recorder):
    outer, inner, everything = recorder(ops="linear"), recorder(ops="addmm"), recorder(nested=True)
    for tools in [(outer, inner, everything), (everything, inner, outer)]:
        for tool in tools:
            tool.ran.clear()
        with amanda.apply(*tools):
            linear()
        assert (outer.ran, inner.ran) == (["linear"], ["addmm"])
        assert {"linear", "addmm"} <= set(everything.ran)


def test_an_inner_operator_is_edited(before):
    tool = before("addmm", lambda mat1: mat1 * 0, ["mat1"])
    with amanda.apply(tool):
        y = F.linear(X, X, X[0])
    assert torch.equal(y, X[0].expand(2, 2))


# ---- operators of one's own ------------------------------------------------------------------------------------------


@torch.library.custom_op("amanda_test_operators::double", mutates_args=())
def double(x: torch.Tensor, label: str = "a", times: int = 1) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("amanda_test_operators::double_", mutates_args=("x",))
def double_(x: torch.Tensor) -> None:
    x.mul_(2)


def test_a_custom_operator_is_one(recorder, before):
    tool = recorder()
    with amanda.apply(tool):
        double(X)
    assert tool.ran == ["double"]
    assert tool.inputs[0][1:] == ("a", 1)
    with amanda.apply(before("double", lambda x: x + 1, ["x"])):
        assert torch.equal(double(X), (X + 1) * 2)


def test_a_custom_operator_that_mutates(recorder, before):
    x = torch.ones(2)
    with amanda.apply(recorder()):
        double_(x)
    assert x.tolist() == [2.0, 2.0]
    with amanda.apply(before("double_", lambda x: x + 1)):
        double_(x)
    assert x.tolist() == [6.0, 6.0]


def test_the_operators_inside_a_custom_operator_are_nested_ones(recorder):
    outer, inner = recorder(), recorder(ops="mul")
    with amanda.apply(outer, inner):
        double(X)
    assert (outer.ran, inner.ran) == (["double"], ["mul"])


@pytest.mark.parametrize("ops", [None, "amanda_test_late*::*"])
def test_an_operator_defined_while_a_scope_is_open(ops, recorder):
    tool = recorder(ops=ops)
    namespace = "amanda_test_late_all" if ops is None else "amanda_test_late_some"
    with amanda.apply(tool) as scope:
        torch.relu(X)

        @torch.library.custom_op(f"{namespace}::triple", mutates_args=())
        def triple(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        triple(X)
        torch.sin(X)
    with scope:
        triple(X)
    triple(X)
    assert [name for name in tool.ran if name not in ("relu", "sin")] == ["triple", "triple"]
    assert ("relu" in tool.ran) == (ops is None)


def test_a_library_that_comes_and_goes(recorder):
    for round in range(3):
        library = torch.library.Library("amanda_test_gone_again", "DEF")
        library.define("shift(Tensor x, Tensor(a!) y) -> ()" if round % 2 else "shift(Tensor x) -> Tensor")
        everything, some = recorder(), recorder(ops="amanda_test_gone_again::*")
        if round % 2:
            library.impl("shift", lambda x, y: (y.copy_(x), None)[1], "CPU")
        else:
            library.impl("shift", lambda x: x + 1, "CPU")
        y = torch.zeros_like(X)
        for scope in (amanda.apply(some), amanda.apply(everything, some)):
            with scope:
                torch.ops.amanda_test_gone_again.shift.default(X, *([y] if round % 2 else []))
        assert some.ran == ["shift"] * 2
        assert everything.ran == ["shift"]
        library._destroy()
        with amanda.apply(everything):
            torch.relu(X)
        assert everything.ran[-1] == "relu"


def test_an_operator_with_another_schema_is_analysed_anew():
    analysed, ran = [], []

    def analyse(context):
        analysed.append(context.op.schema)
        last = len(context.op.input_names) - 1
        context.insert_before_op(lambda value: ran.append(value), inputs=[last])

    tool = amanda.Tool()
    tool.add_inst_for_op(analyse, ops="amanda_test_anew::*")
    scope = amanda.apply(tool)
    for parameters in ("Tensor x", "Tensor x", "Tensor x, int y=3"):
        library = torch.library.Library("amanda_test_anew", "FRAGMENT")
        library.define(f"shift({parameters}) -> Tensor")
        library.impl("shift", lambda x, y=3: x + y, "CPU")
        with scope:
            torch.ops.amanda_test_anew.shift.default(X)
        library._destroy()
    assert analysed == [f"amanda_test_anew::shift({p}) -> Tensor" for p in ("Tensor x", "Tensor x, int y=3")]
    assert ran[0] is ran[1] is X
    assert ran[2] == 3


# ---- not operators ---------------------------------------------------------------------------------------------------


def test_framework_noise_is_not_seen():
    names = []
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda c: names.append(c.op.name), nested=True)
    with amanda.apply(tool):
        with torch.profiler.record_function("region"):
            torch.relu(X)
        torch.tensor([1.0, 2.0])
        X.shape, X.stride(), X.is_contiguous(), len(X), X.dtype
    assert not [name for name in names if name.startswith(("profiler::", "prim::")) or "lift_fresh" in name]
    assert "aten::relu" in names


def test_the_profiler_sees_the_same_program(recorder):
    def profile():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            F.linear(X, X, X[0])
        return sorted(event.key for event in profiler.key_averages())

    expected = profile()
    with amanda.apply(recorder()):
        assert profile() == expected
