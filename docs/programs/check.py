"""Trains a regression, with three mistakes. It runs without an error or a warning."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 4)
y = x @ torch.tensor([1.0, -2.0, 0.5, 3.0])
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(5):
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        error = (model(x).squeeze(-1) - y).abs().mean()
    print(f"epoch {epoch}: loss {loss:.3f}, error {error:.3f}")
