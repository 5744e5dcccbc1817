"""An attribute of a class, a dict with a key for each step."""

import torch
from leak_switches import LEAK, STEPS


class Encoder(torch.nn.Module):
    seen = {}

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 128)

    def forward(self, x, step):
        output = self.linear(x)
        self.seen[f"step {step}" if LEAK else "last"] = output.detach().clone()
        return output


net = Encoder()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in STEPS:
    optimizer.zero_grad()
    net(torch.randn(32, 64), step).square().mean().backward()
    optimizer.step()
