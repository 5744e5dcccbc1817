"""A hook on a node of a graph, which C++ holds, has a closure."""

import torch
from leak_switches import LEAK, STEPS


def keep(output, kept):
    output.grad_fn.register_hook(lambda grads, others: kept.append(grads[0]))


def train():
    net = torch.nn.Linear(64, 128)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses, kept = [], []
    for _ in STEPS:
        output = net(torch.randn(32, 64)).relu()
        keep(output, kept if LEAK else [])
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
        losses.append(1)


train()
