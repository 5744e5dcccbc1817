"""A loader fetches batches faster than they are used, and keeps the rest."""

import collections

import torch
from leak_switches import LEAK, STEPS


def prefetched(steps):
    waiting = collections.deque()
    for _ in steps:
        waiting.append(torch.randn(32, 64))
        if LEAK:
            waiting.append(torch.randn(32, 64))
        yield waiting.popleft()


net = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for x in prefetched(STEPS):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
