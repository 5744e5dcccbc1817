"""Functions that are called later hold what they need, and more."""

import torch
from leak_switches import LEAK, STEPS


def reporter(step, output):
    value = output if LEAK else output.mean().item()
    return lambda: (step, value)


def train():
    net = torch.nn.Linear(64, 128)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    reports = []
    for step in STEPS:
        output = net(torch.randn(32, 64))
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
        reports.append(reporter(step, output.detach()))


train()
