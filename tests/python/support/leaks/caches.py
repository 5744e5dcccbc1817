"""A cache of results has no bound that matters."""

import functools

import torch
from leak_switches import LEAK, STEPS


@functools.lru_cache(maxsize=None if LEAK else 2)
def weights(step):
    return torch.linspace(0, step, 32 * 64).reshape(32, 64)


net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in STEPS:
    optimizer.zero_grad()
    (net(torch.randn(32, 64)) * weights(step)).square().mean().backward()
    optimizer.step()
