"""The context of an `autograd.Function` has tensors as attributes, and a list has the nodes."""

import torch
from leak_switches import LEAK, STEPS


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.unused = x.exp()
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


net = torch.nn.Linear(64, 128)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
nodes = []
for _ in STEPS:
    output = Double.apply(net(torch.randn(32, 64)))
    nodes.append(output.grad_fn if LEAK else output.grad_fn.name())
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
