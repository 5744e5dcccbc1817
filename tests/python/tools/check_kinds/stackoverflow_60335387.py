"""Stack Overflow 60335387: gradients are never cleared."""

import torch
import torch.nn.functional as F
from torch import nn

FINDS = "missing-zero-grad"


def wrong(clears=False):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    for _ in range(4):
        if clears:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,)))
        loss.backward()
        optimizer.step()  # wrong


def right():
    wrong(clears=True)
