"""Programs for tests of PeakMemory, and what it found in them."""

from __future__ import annotations

import amanda
import torch
from amanda.tools.memory import PeakMemory

F32 = 4
WIDTHS = (64, 256, 8)
BATCH = 32


def mlp():
    torch.manual_seed(0)
    one, two, three = WIDTHS
    return torch.nn.Sequential(torch.nn.Linear(one, two), torch.nn.Tanh(), torch.nn.Linear(two, three))


def train(model, steps=2, optimizer=torch.optim.Adam):
    optimizer = optimizer(model.parameters(), lr=0.01)
    x = torch.ones(BATCH, WIDTHS[0])
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return optimizer


def measured(run):
    memory = PeakMemory()
    with amanda.apply(memory):
        kept = run()
    return memory, kept


def by(memory, by, *fields):
    return {row.name: tuple(getattr(row, field) for field in fields) for row in memory.rows(by)}
