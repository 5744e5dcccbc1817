"""mmpretrain 702: stages are frozen by the model's own train(), which the program never calls."""

import torch
import torch.nn.functional as F
from torch import nn

FINDS = "train-not-called"


class Backbone(nn.Module):
    def __init__(self, frozen_stages):
        super().__init__()
        self.frozen_stages = frozen_stages
        self.stages = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()) for _ in range(3))

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x

    def train(self, mode=True):
        super().train(mode)
        for stage in self.stages[: self.frozen_stages]:
            stage.requires_grad_(False)
        return self


def wrong(calls_train=False):
    model = nn.Sequential(Backbone(frozen_stages=2), nn.Linear(4, 3))
    if calls_train:
        model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
        optimizer.step()  # wrong


def right():
    wrong(calls_train=True)
