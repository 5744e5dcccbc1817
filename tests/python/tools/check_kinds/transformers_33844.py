"""transformers 33844: attention has dropout in evaluation mode."""

import torch
import torch.nn.functional as F
from torch import nn

FINDS = "dropout-ignores-mode"


class Attention(nn.Module):
    def __init__(self, knows_mode):
        super().__init__()
        self.project, self.dropout, self.knows_mode = nn.Linear(8, 24), 0.1, knows_mode

    def forward(self, x):
        query, key, value = self.project(x).chunk(3, -1)
        dropout = 0.0 if self.knows_mode and not self.training else self.dropout
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)  # wrong


def wrong(knows_mode=False):
    model = nn.Sequential(Attention(knows_mode), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model.train()
        optimizer.zero_grad()
        model(torch.randn(2, 5, 8)).square().mean().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.randn(2, 5, 8))


def right():
    wrong(knows_mode=True)
