"""Exceptions are kept, and with their tracebacks the variables of the functions that raised."""

import torch
from leak_switches import LEAK, STEPS


def check(output):
    scores = output.softmax(dim=1)
    if scores.max() <= 1:
        raise ValueError("too small")


net = torch.nn.Linear(64, 128)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
errors = []
for _ in STEPS:
    output = net(torch.randn(32, 64))
    try:
        check(output.detach())
    except ValueError as error:
        errors.append(error if LEAK else str(error))
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
