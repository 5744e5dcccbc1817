"""Small training runs with a History, for its tests."""

import amanda
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.head(torch.relu(self.drop(self.body(x))))


def made(optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = Net()
    return model, optimizer(model.parameters(), **options)


def step_of(model, optimizer):
    """A training step. Gradients are dropped behind it, as in many programs."""
    loss = model(torch.randn(16, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def trained(history, model, optimizer, steps=8, **plan):
    with amanda.scheduled(history, **plan) as run:
        for _ in range(steps):
            history.log(loss=step_of(model, optimizer))
            run.step()


def values(history, tool, name, quantity):
    """A series: values by step."""
    rows = [row for row in history.rows("step") if (row.tool, row.name, row.quantity) == (tool, name, quantity)]
    return {row.step: row.value for row in rows}
