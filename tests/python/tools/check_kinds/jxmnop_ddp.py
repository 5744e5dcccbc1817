"""jxmnop: the trainer sometimes calls the module beside its DistributedDataParallel."""

import torch
import torch.nn.functional as F
from torch import nn

FINDS = "ddp-bypassed"
ALSO = "ranks-part"  # as they do
RANKS = 2


def wrong(wrapped=False):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(4):
        optimizer.zero_grad()
        runs = ddp if wrapped or i % 2 else model
        F.cross_entropy(runs(torch.randn(6, 4)), torch.randint(3, (6,))).backward()  # wrong
        optimizer.step()


def right():
    wrong(wrapped=True)
