"""Objects that refer to each other wait for the garbage collector, which does not know how much memory they hold."""

import torch
from leak_switches import LEAK, STEPS


class Record:
    def __init__(self, output):
        self.output = output
        self.itself = self if LEAK else None


net = torch.nn.Linear(64, 128)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in STEPS:
    output = net(torch.randn(32, 64))
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
    Record(output.detach())
