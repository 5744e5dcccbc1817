"""A buffer of a module becomes longer with each step."""

import torch
from leak_switches import LEAK, STEPS


class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.register_buffer("bank", torch.zeros(32, 64))

    def forward(self, x):
        output = self.linear(x)
        new = output.detach()
        self.bank = torch.cat([self.bank, new]) if LEAK else torch.cat([self.bank[1:], new[:1]])
        return output + self.bank.mean()


net = Memory()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in STEPS:
    optimizer.zero_grad()
    net(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
