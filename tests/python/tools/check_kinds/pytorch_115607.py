"""PyTorch 115607: after one step without gradients, a compiled step updates nothing any more.

The compiler's mistake is gone. This optimizer makes the same one: it goes on with what it noted for that step."""

import torch
from torch import nn

FINDS = "step-without-effect"


class Noting(torch.optim.SGD):
    def __init__(self, parameters, notes_again):
        super().__init__(parameters, 0.1)
        self.notes_again, self.noted, self.updated = notes_again, set(), []

    def step(self, closure=None):
        parameters = [one for group in self.param_groups for one in group["params"]]
        missing = any(one.grad is None for one in parameters)
        if missing not in self.noted or self.notes_again:
            self.noted.add(missing)
            self.updated = [one for one in parameters if one.grad is not None]
        for one in self.updated:
            one.data.add_(one.grad, alpha=-0.1)


def wrong(notes_again=False):
    model = nn.Linear(4, 4)
    optimizer = Noting(model.parameters(), notes_again)
    for i in range(8):
        optimizer.zero_grad()
        if i != 2:
            model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()  # wrong


def right():
    wrong(notes_again=True)
