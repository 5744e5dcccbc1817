"""A classifier, and one batch. Its export is classify.onnx."""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList([Layer(), Layer(), Layer()]), nn.Linear(16, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x).softmax(-1)


torch.manual_seed(0)
model = Classifier().eval()
with torch.no_grad():
    print(model(torch.randn(8, 16)).argmax(-1).tolist())
