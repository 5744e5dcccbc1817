"""The same encoder, in a port: one argument was forgotten."""

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, num_layers=3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.randn(8, 16, 64)).square().mean()
loss.backward()
optimizer.step()
print(f"loss: {loss.item():.6f}")
