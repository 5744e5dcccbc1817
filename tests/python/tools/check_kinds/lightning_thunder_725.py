"""lightning-thunder 725: a transformation leaves a primitive in autocast that autocast does not know."""

import torch
import torch.nn.functional as F
from torch import nn

FINDS = "autocast-lost"


class Convolution(nn.Module):
    def __init__(self, primitive):
        super().__init__()
        self.weight, self.primitive = nn.Parameter(torch.randn(4, 3, 3, 3)), primitive

    def forward(self, x):
        if self.primitive:
            return torch.convolution(x, self.weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)  # wrong
        return F.conv2d(x, self.weight)


def wrong(primitive=True):
    model = Convolution(primitive)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(2, 3, 8, 8)).float().square().mean()
        loss.backward()
        optimizer.step()


def right():
    wrong(primitive=False)
