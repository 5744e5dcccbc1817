"""The ids of operators as a program ran them, and a model of blocks, for the tests of identity."""

import amanda
import torch
from torch import nn


class Ids(amanda.Tool):
    """Lists (operator name, id) of every run."""

    def __init__(self, **options):
        super().__init__()
        self.runs = []
        self.recomputed = []
        self.add_inst_for_op(self.analyze, **options)

    def analyze(self, context):
        run = (context.op.__name__, context.op_id)
        if context.is_recompute:
            self.recomputed.append(run)
        context.insert_before_op(lambda: self.runs.append(run), inputs=[])


def ids(program, scopes=1, **options):
    tool = Ids(**options)
    for _ in range(scopes):
        with amanda.apply(tool):
            program()
    return tool.runs


def ids_of(name, runs):
    return [id for op, id in runs if op == name]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.act(self.fc2(self.act(self.fc1(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sum()


x = torch.randn(2, 4)
