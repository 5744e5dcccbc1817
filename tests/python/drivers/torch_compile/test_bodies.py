"""The graphs inside a compiled graph: their operators are the program's."""

import torch
from recorded_programs import compiled_operators, record
from torch import nn
from torch.utils.checkpoint import checkpoint


def bodies(recorded):
    (program,) = recorded.programs
    return [(body.name, [operand.name for operand in body.operands.values()]) for body in program.bodies]


def test_a_checkpointed_region():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def function(x):
        return checkpoint(net, x.sin(), use_reentrant=False).sum()

    _, recorded = record(function, torch.rand(2, 4), rewrite=False)
    assert compiled_operators(recorded) == ["aten::sin", "aten::linear", "aten::relu", "aten::sum"]
    linear = recorded.call("aten::linear")
    assert linear.inputs[1] is net[0].weight
    assert [origin.tensor for origin in linear.origins] == [net[0].weight, net[0].bias]
    assert linear.backward == "AddmmBackward0"
    assert linear.node.graph.owning_module is recorded.programs[0].bodies[0].gm
    assert bodies(recorded)[0][1][0] == "sin"
    assert recorded.unseen == []


def test_both_branches_of_cond():
    net = nn.Linear(4, 4)

    def function(x):
        return torch.cond(x.sum() > 0, lambda x: net(x).sin(), lambda x: net(x).cos(), (x,))

    _, recorded = record(function, torch.rand(2, 4), rewrite=False)
    assert compiled_operators(recorded) == [
        "aten::sum",
        "aten::gt.Scalar",
        *("aten::linear", "aten::sin"),
        *("aten::linear", "aten::cos"),
    ]
    assert all(call.inputs[1] is net.weight for call in recorded.calls if call.name == "aten::linear")
    assert recorded.unseen == []


def test_a_loop():
    def function(x, w):
        def step(i, x):
            return i + 1, torch.sin(x) * w

        return torch.while_loop(lambda i, x: i.sum() < 3, step, (torch.zeros(1), x))

    _, recorded = record(function, torch.rand(3), torch.rand(3), rewrite=False)
    assert {"aten::lt.Scalar", "aten::sin", "aten::mul.Tensor"} <= set(compiled_operators(recorded))
    # Only what is no part of the loop's state is always the same tensor.
    assert {name for _, operands in bodies(recorded) for name in operands} == {"l_w_"}


def test_an_operator_with_unknown_bodies_is_named():
    def function(xs):
        return torch._higher_order_ops.associative_scan(torch.add, xs, 0, combine_mode="generic") * 2

    _, recorded = record(function, torch.rand(4), rewrite=False)
    assert compiled_operators(recorded)[-1] == "aten::mul.Tensor"
    assert any("higher-order operator" in reason for _, reason in recorded.unseen)
