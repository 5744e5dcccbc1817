"""C++ tools on compiled code, and replacements under autocast."""

import amanda
import pytest
import torch
from amanda import _tools
from amanda.tool import NativeTool
from torch import nn


@pytest.fixture
def net():
    torch._dynamo.reset()
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def step(run, net, x):
    net.zero_grad()
    loss = run(x).square().sum()
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in net.parameters())]


@pytest.mark.parametrize(
    "make",
    [
        lambda: _tools.counting_tool(backward=True, looks=True),
        lambda: _tools.counting_tool(backward=True),
        lambda: _tools.editing_tool(["linear"]),
    ],
    ids=["looks", "may edit", "edits"],
)
def test_a_native_tool_that_changes_nothing(net, make):
    x, compiled = torch.randn(3, 4), torch.compile(net, backend="aot_eager")
    expected = step(compiled, net, x)
    with amanda.apply(NativeTool(make()), compiled="graph"):
        found = step(compiled, net, x)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def replacing(ops):
    tool = amanda.Tool("replace")

    def analyze(context):
        op = context.op
        context.replace_op(lambda *inputs: op(*inputs) * 2)

    tool.add_inst_for_op(analyze, ops=ops)
    return tool


@pytest.mark.parametrize("is_outside", [True, False])
def test_a_replacement_runs_in_the_autocast_of_its_operator(net, is_outside):
    def function(x):
        if is_outside:
            return net(x)
        with torch.autocast("cpu", torch.bfloat16):
            return net(x)

    def in_autocast(call):
        def run(x):
            with torch.autocast("cpu", torch.bfloat16, enabled=is_outside):
                result = call(x)
            assert result.dtype == torch.bfloat16
            return result.float()

        return run

    x = torch.randn(3, 4)
    with amanda.apply(replacing("linear")):
        expected = step(in_autocast(function), net, x)
    with amanda.apply(replacing("linear"), compiled="graph"):
        found = step(in_autocast(torch.compile(function, backend="aot_eager")), net, x)
    for one, other, plain in zip(found, expected, step(in_autocast(function), net, x), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
        assert not torch.allclose(one, plain, rtol=0.2)
