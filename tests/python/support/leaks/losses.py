"""Losses are kept, with their graphs, by an evaluation without `torch.no_grad`."""

import torch
from leak_switches import LEAK, STEPS

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
history = []
for _ in STEPS:
    x = torch.randn(32, 64)
    loss = (net(x) - x).square().mean()
    history.append(loss if LEAK else loss.item())
