"""PyTorch 104336: a model is moved after it was wrapped by DistributedDataParallel, which loses its hooks.

Conversions do the same on one device."""

import torch
import torch.nn.functional as F
from torch import nn

FINDS = "ranks-part"
SAYS = "after backward() for step 1"
RANKS = 2


def wrong(moves_first=False):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    if moves_first:
        model.double().float()
    ddp = nn.parallel.DistributedDataParallel(model)
    if not moves_first:
        ddp.double().float()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(ddp(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
        optimizer.step()  # wrong


def right():
    wrong(moves_first=True)
