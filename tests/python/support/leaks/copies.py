"""A copy of the model is made for an average of weights, and none is forgotten."""

import copy

import torch
from leak_switches import LEAK, STEPS


class Trainer:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.averages = [copy.deepcopy(self.net)]

    def step(self):
        self.optimizer.zero_grad()
        self.net(torch.randn(32, 64)).square().mean().backward()
        self.optimizer.step()
        if LEAK:
            self.averages.append(copy.deepcopy(self.net))
        for average, weight in zip(self.averages[-1].parameters(), self.net.parameters(), strict=True):
            average.data.lerp_(weight.data, 0.1)


trainer = Trainer()
for _ in STEPS:
    trainer.step()
