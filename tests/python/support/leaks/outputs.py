"""A function keeps all outputs in a list."""

import torch
from leak_switches import LEAK, STEPS


def evaluate(net):
    outputs = []
    for _ in STEPS:
        with torch.no_grad():
            output = net(torch.randn(32, 64))
        outputs.append(output if LEAK else output.argmax(dim=1).tolist())
    return len(outputs)


evaluate(torch.nn.Linear(64, 128))
