"""Trains a small network, and keeps the losses: with each, its graph."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
optimizer = torch.optim.Adam(model.parameters())
losses = []
for _ in range(10):
    batch = torch.randn(512, 256)
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    losses.append(loss)
print(f"mean loss: {sum(losses) / len(losses):.3f}")
