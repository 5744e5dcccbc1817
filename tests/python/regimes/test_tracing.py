"""Tracing is not running: make_fx, export, fake tensors; and higher-order operators."""

import amanda
import pytest
import torch

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
