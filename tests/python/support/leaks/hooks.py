"""A forward hook keeps activations."""

import torch
from leak_switches import LEAK, STEPS


def watch(module):
    activations = []

    def keep(module, inputs, output):
        if not LEAK:
            activations.clear()
        activations.append(output.detach())

    module.register_forward_hook(keep)


net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
watch(net[1])
optimizer = torch.optim.Adam(net.parameters())
for _ in STEPS:
    optimizer.zero_grad()
    net(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
