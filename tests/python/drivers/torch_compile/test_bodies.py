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


def test_operators_in_unknown_bodies_are_named():
    def function(xs):
        return torch._higher_order_ops.scan(lambda c, x: (c + x, c * x), torch.zeros(3), xs)[1] * 2

    _, recorded = record(function, torch.rand(4, 3), rewrite=False)
    assert compiled_operators(recorded) == ["aten::zeros", "aten::mul.Tensor"]
    inside = "it is inside scan, which runs its graphs in a way that the driver does not know"
    assert {("aten::add", inside), ("aten::mul", inside)} <= set(recorded.unseen)


def test_the_backward_of_the_program_s_own_functions_is_named():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin() * 2

        @staticmethod
        def backward(ctx, grad):
            return grad.cos() * 2

    _, recorded = record(lambda x: Double.apply(x) + 1, torch.rand(3, requires_grad=True), rewrite=False)
    assert compiled_operators(recorded) == ["aten::sin", "aten::mul.Tensor", "aten::add.Tensor"]
    inside = "it is in the backward of a torch.autograd.Function, of which a backward operator is made"
    # Its name and its arguments are noted where tools are in force, and not in this test.
    unknown = "the driver does not know which operands of the compiled code are its arguments"
    assert set(recorded.unseen) == {
        ("aten::cos", inside),
        ("aten::mul", inside),
        ("autograd::FunctionBackward", unknown),
    }


def test_operators_of_a_region_that_is_compiled_once_for_all_layers():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @torch.compiler.nested_compile_region
        def forward(self, x):
            return self.linear(x).relu()

    net = nn.Sequential(Layer(), Layer(), Layer())
    _, recorded = record(net, torch.rand(2, 4, requires_grad=True), rewrite=False)
    shared = "it is inside invoke_subgraph, in a graph that several calls share"
    assert compiled_operators(recorded) == []
    assert set(recorded.unseen) == {("aten::linear", shared), ("aten::relu", shared)}
