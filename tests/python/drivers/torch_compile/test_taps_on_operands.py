"""Taps on operands of every kind: numbers, running statistics, tensors that are written in place."""

import amanda
import torch
from torch import nn


def looking(seen, backward=True):
    tool = amanda.Tool("look")
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(lambda *args, name=context.op.name: seen.append(name)), ops="aten::*"
    )
    if backward:
        tool.add_inst_for_op(
            lambda context: context.insert_before_backward_op(
                lambda *grads, name=context.op.name: seen.append(f"backward of {name}")
            ),
            backward=True,
        )
    return tool


def test_a_net_with_running_statistics_and_in_place_operators():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.Linear(8, 2))
    compiled, x = torch.compile(net, backend="aot_eager"), torch.rand(3, 4)

    def step():
        net.zero_grad()
        net[2].reset_running_stats()
        loss = compiled(x).square().sum()
        loss.backward()
        return [loss.detach(), *(p.grad for p in net.parameters()), *(b.clone() for b in net.buffers())]

    expected, seen = step(), []
    with amanda.apply(looking(seen), compiled="graph"):
        results = step()
    for result, known in zip(results, expected, strict=True):
        torch.testing.assert_close(result, known, rtol=0, atol=0)
    names = ["aten::linear", "aten::relu_", "aten::add_", "aten::batch_norm", "aten::linear"]
    first = seen.index("aten::linear")
    assert seen[first : first + 5] == names
    assert [one for one in seen if one.startswith("backward of aten::") and one[12:] in names] == [
        f"backward of {name}" for name in reversed(names) if name != "aten::add_"
    ]


def test_numbers_where_an_operator_takes_tensors():
    def function(x):
        return x * 2 + x.shape[0] - 1

    def triple(context):
        op = context.op
        context.replace_op(lambda *args: op(*args) * 3)

    tool = amanda.Tool("triple")
    tool.add_inst_for_op(triple, ops="mul")
    x, seen = torch.rand(3, 4), []
    compiled = torch.compile(function, backend="aot_eager", dynamic=True)
    with amanda.apply(looking(seen, backward=False), tool, compiled="graph"):
        result = compiled(x)
    torch.testing.assert_close(result, x * 6 + 3 - 1)
    assert seen == ["aten::mul", "aten::add", "aten::sub"]
