"""Runs that CausalDiff compares, and what it finds."""

import amanda
import torch
from amanda.tools.diff import CausalDiff
from torch import nn


def train(*, beta=0.999, eps=1e-5, seed=0, change=None, scale=1.0, steps=3, weight_decay=0.01):
    """Trains a small network. Nothing but the keywords may differ between two calls."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=eps), nn.Dropout(0.5), nn.Linear(8, 3))
    if change:
        with amanda.disabled():
            change(model)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, beta), weight_decay=weight_decay)
    x = torch.randn(5, 4)
    torch.manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) * scale).square().sum().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def causes(reference, run=train, tolerances=None, **changed):
    diff = CausalDiff(reference, **tolerances or {})
    with amanda.apply(diff):
        run(**changed)
    return [(row.kind, row.name, row.backward_op, row.module_path, row.note) for row in diff.rows()]
