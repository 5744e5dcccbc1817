"""An encoder of three layers, and one step of its training."""

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, layer_norm_eps=1e-12)
model = nn.TransformerEncoder(layer, num_layers=3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.randn(8, 16, 64)).square().mean()
loss.backward()
optimizer.step()
print(f"loss: {loss.item():.6f}")
