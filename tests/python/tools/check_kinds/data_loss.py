"""PyTorch 84803, PyTorch 96600, Baichuan2 86: cards lose data that they send to each other.

As in TrainCheck's own reproduction, what arrives is set to zero. Here a communication hook does it, in step 2 on rank 1."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

FINDS = "ranks-part"
SAYS = "after backward() for step 2"
RANKS = 2


class Losing:
    def __init__(self, loses):
        self.passes, self.loses = 0, loses

    def __call__(self, group, bucket):
        self.passes += 1
        is_lost = self.loses and self.passes == 2 and torch.distributed.get_rank() == 1
        return allreduce_hook(group, bucket).then(lambda done: done.value() * (0 if is_lost else 1))


def wrong(loses=True):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    ddp = nn.parallel.DistributedDataParallel(model)
    losing = Losing(loses)
    ddp.register_comm_hook(None, lambda state, bucket: losing(None, bucket))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(ddp(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
        optimizer.step()  # wrong


def right():
    wrong(loses=False)
