"""Each step has an optimizer of its own, with averages of its own."""

import torch
from leak_switches import LEAK, STEPS

net = torch.nn.Linear(64, 128)
optimizers = [torch.optim.Adam(net.parameters())]
for _ in STEPS:
    if LEAK:
        optimizers.append(torch.optim.Adam(net.parameters()))
    optimizers[-1].zero_grad()
    net(torch.randn(32, 64)).square().mean().backward()
    optimizers[-1].step()
