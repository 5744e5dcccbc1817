"""Trains a network with gates, one of which is changed in place."""

import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        gated = gate * self.value(x)
        gate += 0.1
        return gated.sum() + gate.mean()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), Gated())
model(torch.randn(4, 8)).backward()
