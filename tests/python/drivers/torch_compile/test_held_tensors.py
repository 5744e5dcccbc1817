"""Gradients of tensors that routines and replacements hold, where the compiler does not see these."""

import amanda
import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.b(torch.relu(self.a(x))).square().sum()


class Holds(amanda.Tool):
    """Its routine is not Python that can be traced: it appends to a list."""

    def __init__(self, make, method="insert_after_op", ops="linear", **options):
        super().__init__()
        self.held, self.ran, self.options = make(), [], options

        def analyze(context):
            original = context.op
            getattr(context, method)(lambda *values: self.act(original, *values), **options)

        self.add_inst_for_op(analyze, ops=ops)


class Scales(Holds):
    def __init__(self):
        super().__init__(lambda: torch.full((1,), 0.5, requires_grad=True), differentiable=True)

    def act(self, original, y):
        self.ran.append(y.shape)
        return y * self.held


class ScalesByAView(Scales):
    """The graph goes on behind what the routine uses."""

    def __init__(self):
        super().__init__()
        self.doubled = 2 * self.held

    def act(self, original, y):
        return y * self.doubled[0]


class LowRank(Holds):
    """A replacement with a part that is trained."""

    def __init__(self):
        super().__init__(lambda: torch.full((2, 6), 0.25, requires_grad=True), "replace_op", "relu")

    def act(self, original, x):
        self.ran.append(x.shape)
        return original(x) + x @ self.held.T @ self.held


def gradients(tool, net, mode, passes=1):
    function = torch.compile(net, backend="aot_eager") if mode == "graph" else net
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    with amanda.apply(tool, compiled=mode):
        for _ in range(passes):
            function(x).backward(retain_graph=isinstance(tool, ScalesByAView))
    return [tool.held.grad, *(parameter.grad for parameter in net.parameters())]


@pytest.mark.parametrize("make", [Scales, ScalesByAView, LowRank])
@pytest.mark.parametrize("passes", [1, 3])
def test_they_get_the_gradients_of_eager_mode(make, passes):
    compiled, eager = gradients(make(), Net(), "graph", passes), gradients(make(), Net(), "eager", passes)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(compiled, eager, strict=True))
    assert eager[0].abs().max() > 0


def test_parameters_of_the_model_get_both_parts():
    class Shared(Scales):
        def __init__(self, net):
            super().__init__()
            self.held = net.a.bias

        def act(self, original, y):
            self.ran.append(y.shape)
            return y * self.held.sum()

    found = []
    for mode in ("graph", "eager"):
        net = Net()
        found.append(gradients(Shared(net), net, mode)[1:])
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(*found, strict=True))


def test_hooks_of_a_held_tensor_run_as_often():
    counts = []
    for mode in ("graph", "eager"):
        tool, seen = Scales(), []
        tool.held.register_hook(lambda gradient, seen=seen: seen.append("gradient"))
        tool.held.register_post_accumulate_grad_hook(lambda tensor, seen=seen: seen.append("accumulated"))
        gradients(tool, Net(), mode)
        counts.append((seen.count("gradient") > 0, seen.count("accumulated") > 0, seen[-1]))
    assert counts[0] == counts[1]


def test_under_no_grad_nothing_is_recorded():
    tool = Scales()
    with amanda.apply(tool, compiled="graph"), torch.no_grad():
        result = torch.compile(Net(), backend="aot_eager")(torch.ones(3, 4))
    assert not result.requires_grad
    assert len(tool.ran) == 2


def frozen():
    return Net().requires_grad_(False)


def test_a_gradient_that_a_graph_has_no_place_for_is_an_error():
    tool = Scales()
    compiled = torch.compile(frozen(), backend="aot_eager")
    with pytest.raises(amanda.Error) as raised, amanda.apply(tool, compiled="graph"):
        compiled(torch.ones(3, 4))
    assert (
        "aten::linear: a routine or replacement uses a tensor of its own that needs a gradient, and no operand"
        in str(raised.value)
    )
    assert 'compiled="eager"' in str(raised.value)
    with amanda.apply(Scales(), compiled="eager"):
        assert compiled(torch.ones(3, 4)).requires_grad


def test_without_a_held_tensor_that_needs_one_there_is_none():
    tool = Scales()
    tool.held.requires_grad_(False)
    with amanda.apply(tool, compiled="graph"):
        assert not torch.compile(frozen(), backend="aot_eager")(torch.ones(3, 4)).requires_grad
