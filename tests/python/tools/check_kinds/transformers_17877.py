"""transformers 17877: each module of a model initializes all modules in it."""

import torch
from torch import nn

FINDS = "initialized-repeatedly"


class Block(nn.Module):
    def __init__(self, *inside):
        super().__init__()
        self.inside = nn.ModuleList(inside)
        self.projection = nn.Linear(4, 4)
        self.init_weights()

    def init_weights(self):
        self.apply(initialize)

    def forward(self, x):
        for one in self.inside:
            x = one(x)
        return self.projection(x).relu()


class Lean(Block):
    def init_weights(self):
        pass


def initialize(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)  # wrong


def wrong():
    Block(Block(Block()), Block())(torch.randn(2, 4))


def right():
    Lean(Lean(Lean()), Lean()).apply(initialize)(torch.randn(2, 4))
