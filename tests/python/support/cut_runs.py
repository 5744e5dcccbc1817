"""What tests of GradientCuts share: training, and what the tool found."""

import amanda
import torch
from amanda.tools.cuts import GradientCuts
from torch import nn


class Model(nn.Module):
    """`between` is what the program does between the parameters that may be cut off and those that are not."""

    def __init__(self, between):
        super().__init__()
        self.first, self.last, self.between = nn.Linear(4, 4), nn.Linear(4, 4), between

    def forward(self, x):
        return self.last(self.between(self.first(x), self))


def verdicts(tool):
    return {row.name: row.verdict for row in tool.rows()}


def train(model, loss_of, *, steps=3, optimizer=None, after=lambda: None):
    tool = GradientCuts()
    with amanda.apply(tool):
        for _ in range(steps):
            model.zero_grad()
            loss_of(model).backward()
            after()
            if optimizer:
                optimizer.step()
    return tool


def reasons(tool):
    return {name: found.cuts[0].reason for found in tool.findings() for name in found.parameters}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def loss_of(model):
    return model(torch.randn(3, 4)).square().mean()
