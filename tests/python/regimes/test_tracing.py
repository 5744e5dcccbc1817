"""Tracing is not running: make_fx, export, fake tensors; and higher-order operators."""

import io

import amanda
import pytest
import torch
import torch.nn.functional as F
from unharmed import Look, check_unharmed

X = torch.tensor([-1.0, 2.0])
nn = torch.nn


def test_fake_tensors_are_passed_through_unseen(recorder, after):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    tool = recorder()
    with amanda.apply(tool, after("relu", lambda y: y + 1)):
        with FakeTensorMode() as mode:
            y = torch.relu(torch.empty(3))
        z = torch.sin(y)  # outside its mode
        w = mode.from_tensor(X)
    assert all(isinstance(t, FakeTensor) for t in (y, z, w))
    assert not {"relu", "sin"} & set(tool.ran)


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx_gives_the_same_graph(tracing_mode, recorder, after):
    from torch.fx.experimental.proxy_tensor import make_fx

    def code():
        return make_fx(lambda x: torch.relu(x) + 1, tracing_mode=tracing_mode)(X).code

    expected = code()
    with amanda.apply(recorder(), after("relu", lambda y: y + 1)):
        assert code() == expected


def test_export_gives_the_same_graph(recorder, before):
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.randn(3, 2)

    def code():
        return torch.export.export(model, (x,)).graph_module.code

    expected = code()
    tool = recorder()
    with amanda.apply(tool, before("linear", lambda weight: weight * 0, ["weight"])):
        assert code() == expected
    assert "linear" not in tool.ran


def test_symbolic_trace_gives_the_same_graph(recorder):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    expected = torch.fx.symbolic_trace(model).code
    with amanda.apply(recorder()):
        assert torch.fx.symbolic_trace(model).code == expected


@pytest.mark.xfail(strict=True, reason="operators of fake tensor conversion are seen")
def test_a_tracers_own_operators_on_meta_tensors_are_not_the_program(recorder):
    from torch.fx.experimental.proxy_tensor import make_fx

    tool = recorder()
    with amanda.apply(tool):
        make_fx(lambda x: torch.relu(x) + 1, tracing_mode="fake")(X)
    assert tool.ran == []


def test_meta_tensors_are_ordinary_tensors(recorder):
    tool = recorder()
    with amanda.apply(tool):
        assert torch.relu(torch.empty(3, device="meta")).shape == (3,)
    assert tool.ran == ["empty", "relu"]


def test_control_flow_operators_are_unharmed(recorder):
    from torch._higher_order_ops.while_loop import while_loop

    with amanda.apply(recorder()), amanda.apply(recorder(ops="sin")):
        y = torch.cond(X.sum() > 100, lambda v: v.sin(), lambda v: v.cos(), (X,))
        (n,) = while_loop(lambda i: i < 5, lambda i: (i + 1,), (torch.tensor(0),))
    assert torch.equal(y, X.cos())
    assert n.item() == 5


def test_a_control_flow_operator_defined_later_is_unharmed(recorder):
    from torch._ops import HigherOrderOperator

    class Twice(HigherOrderOperator):
        def __init__(self):
            super().__init__("amanda_test_twice")

        def __call__(self, function, x):
            return super().__call__(function, x)

    with amanda.apply(recorder()):
        twice = Twice()
        twice.py_impl(torch._C.DispatchKey.CompositeExplicitAutograd)(lambda function, x: function(function(x)))
        twice.fallthrough(torch._C.DispatchKey.AutogradCPU)
        assert twice(torch.neg, X).tolist() == X.tolist()


def test_flex_attention_is_unharmed(recorder):
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = torch.randn(3, 1, 1, 16, 16)

    def attend():
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score * 2)

    with pytest.warns(UserWarning, match="flex_attention called without torch.compile"):
        expected = attend()
    with amanda.apply(recorder()):
        assert torch.equal(attend(), expected)


# ---- graphs are the same, to the node --------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm, self.linear = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(8, 3)

    def forward(self, x):
        h = F.relu(self.norm(self.convolution(x)))
        h = h.flatten(1) + h.sum()
        return torch.cond(h.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (self.linear(h),))


IMAGE = (torch.ones(2, 1, 4, 4),)


def code_of(program):
    return program.graph_module.code, sorted(program.state_dict), str(program.graph_signature)


def functions():
    from torch._functorch.aot_autograd import aot_function, make_boxed_func
    from torch.fx.experimental.proxy_tensor import make_fx

    net = Net().eval().requires_grad_(False)
    batch = torch.export.Dim("batch", min=2, max=64)

    def aot():
        graphs = []

        def keep(module, inputs):
            graphs.append(module.code)
            return make_boxed_func(module)

        x = torch.randn(2, 3, requires_grad=True)
        result = aot_function(lambda v: (v.sin() * v).sum(), keep, keep)(x)
        result.backward()
        return graphs

    return {
        "export": lambda: code_of(torch.export.export(net, IMAGE)),
        "export, dynamic": lambda: code_of(torch.export.export(net, IMAGE, dynamic_shapes=({0: batch},))),
        "export, strict": lambda: code_of(torch.export.export(net, IMAGE, strict=True)),
        "export, training": lambda: code_of(
            torch.export.export(nn.Sequential(net.convolution, nn.BatchNorm2d(2)), IMAGE)
        ),
        "export, decomposed": lambda: code_of(torch.export.export(net, IMAGE).run_decompositions()),
        "make_fx of a gradient": lambda: make_fx(torch.func.grad(lambda v: v.sin().sum()))(X).code,
        "make_fx of vmap": lambda: make_fx(torch.vmap(lambda v: v.sin() * 2))(X).code,
        "make_fx, functionalized": lambda: make_fx(torch.func.functionalize(lambda v: v.clone().add_(1)))(X).code,
        "make_fx before dispatch": lambda: make_fx(lambda v: F.linear(v, torch.ones(2, 2)), pre_dispatch=True)(X).code,
        "make_fx, symbolic": lambda: (
            make_fx(lambda v: v.view(-1).relu(), tracing_mode="symbolic")(torch.ones(2, 3)).code
        ),
        "symbolic_trace": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU())).code,
        "aot_function": aot,
    }


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "export, " in name else []) for name in functions()]
)
def test_a_graph_traced_in_a_scope_is_the_graph_without(name):
    torch._dynamo.reset()
    check_unharmed(Look(nested=True), functions()[name], once=True, all_end=False)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_an_exported_program_runs_and_is_saved_inside_a_scope():
    program = torch.export.export(Net().eval().requires_grad_(False), IMAGE)
    module = program.module()

    def run():
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        return module(*IMAGE), torch.export.load(file).module()(*IMAGE)

    tool = check_unharmed(Look(), run, once=True)
    assert tool.count["conv2d"] == 2


def test_an_exported_graph_has_no_node_of_a_tools(after):
    net = Net().eval().requires_grad_(False)
    with amanda.apply(after("linear", lambda y: y * 2)):
        program = torch.export.export(net, IMAGE)
        edited = net(*IMAGE)
    assert not torch.equal(edited, net(*IMAGE))
    assert torch.equal(program.module()(*IMAGE), net(*IMAGE))


# ---- higher-order operators ------------------------------------------------------------------------------------------


def higher_order():
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.map import map as hop_map
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop
    from torch.nn.attention.flex_attention import flex_attention

    w = torch.tensor([0.3, 0.7])

    def differentiated(f):
        x = w.clone().requires_grad_()
        y = f(x)
        y.sum().backward()
        return y, x.grad

    return {
        "cond": lambda: differentiated(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))),
        "cond in cond": lambda: torch.cond(
            w.sum() > 0, lambda v: torch.cond(v.sum() > 1, torch.sin, torch.cos, (v,)), torch.tan, (w,)
        ),
        "cond in vmap": lambda: torch.vmap(lambda v: torch.cond(v > 0.5, torch.sin, torch.cos, (v,)))(w),
        "while_loop": lambda: while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), w)),
        "map": lambda: hop_map(lambda v, a: v * a, w, torch.ones(2)),
        "scan": lambda: scan(lambda c, v: (c + v, c * v), torch.zeros(()), w),
        "associative_scan": lambda: associative_scan(torch.add, w, 0, combine_mode="generic"),
        "flex_attention": lambda: flex_attention(*torch.ones(3, 1, 1, 16, 16), score_mod=lambda s, b, h, i, j: s * 2),
    }


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", higher_order())
def test_higher_order_operators(name):
    check_unharmed(Look(nested=True), higher_order()[name], once=True, all_end=False)
    torch._dynamo.reset()
