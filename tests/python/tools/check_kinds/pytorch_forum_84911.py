"""PyTorch forum 84911: the new head of a pretrained model is frozen, and the optimizer has nothing else."""

import torch
import torch.nn.functional as F
from torch import nn

FINDS = "all-frozen"
ALSO = "parameter-not-in-optimizer"  # the norms of the body, as in the original


def wrong(trains_head=False):
    norm, head = nn.BatchNorm2d(4), nn.Linear(4, 5)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    trained = [*head.parameters(), *norm.parameters()] if trains_head else head.parameters()
    optimizer = torch.optim.Adam(trained, 0.001)
    body[0].requires_grad_(False)
    head.requires_grad_(trains_head)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(head(body(torch.randn(6, 3, 8, 8))), torch.randint(5, (6,)))
        loss.backward()
        optimizer.step()  # wrong


def right():
    wrong(trains_head=True)
