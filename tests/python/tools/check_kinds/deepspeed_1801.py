"""DeepSpeed 1801, in the training of BLOOM-176B: replicated weights are clipped on one rank, and not on the others."""

import torch
import torch.nn.functional as F
from torch import nn

FINDS = "ranks-part"
SAYS = "equal after backward() and changed before step 1"
RANKS = 2


def wrong(clips=(0,)):
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(ddp(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
        if torch.distributed.get_rank() in clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()  # wrong


def right():
    wrong(clips=(0, 1))
