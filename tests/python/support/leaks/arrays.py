"""Arrays of NumPy keep the memory of the tensors that they were made of."""

import torch
from leak_switches import LEAK, STEPS

net = torch.nn.Linear(64, 128)
predictions = []
for _ in STEPS:
    output = net(torch.randn(32, 64)).detach()
    predictions.append(output.numpy() if LEAK else output.mean().item())
