"""A recurrent state is carried from step to step with its graph, which `retain_graph` keeps."""

import torch
from leak_switches import LEAK, STEPS

torch.manual_seed(0)
cell, head = torch.nn.GRUCell(16, 64), torch.nn.Linear(64, 16)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
state = torch.zeros(32, 64)
for _ in STEPS:
    x = torch.randn(32, 16)
    state = cell(x, state if LEAK else state.detach())
    optimizer.zero_grad()
    (head(state) - x).square().mean().backward(retain_graph=LEAK)
    optimizer.step()
