"""PyTorch 51800: a model with spectral norm is evaluated before it was ever run in training mode."""

import torch
from torch import nn

FINDS = "spectral-norm-untrained"


def wrong(runs_first=False):
    layer = nn.Linear(32, 32)
    nn.init.orthogonal_(layer.weight)
    model = nn.Sequential(nn.utils.spectral_norm(layer, n_power_iterations=3), nn.PReLU(32), nn.Linear(32, 1))
    if runs_first:
        for _ in range(3):
            model(torch.randn(4, 32))
    model.eval()
    with torch.no_grad():
        model(torch.randn(4, 32))  # wrong


def right():
    wrong(runs_first=True)
