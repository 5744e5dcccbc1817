"""Counts a transformer's operations as texts get longer, per part of a layer, forward and backward.

The products with weights grow with the length, those of attention with its square. On short texts the model is a
feed-forward network with a little attention, on long ones the other way round. Nothing is run: tensors on the meta
device have shapes only.
"""

import amanda
import torch
from amanda.tools.flops import Flops


class Layer(torch.nn.Module):
    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.attention = Attention()
        self.project = torch.nn.Linear(width, width)
        self.feed_forward = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self.attention(query, key, value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.project(mixed)
        return x + self.feed_forward(x)


class Attention(torch.nn.Module):
    def forward(self, query, key, value):
        return (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).softmax(-1) @ value


model = Layer().to("meta")
for length in (128, 1024, 8192):
    flops = Flops()
    with amanda.apply(flops):
        model(torch.empty(1, length, 256, device="meta")).sum().backward()
    by_module = flops.by_module()
    shares = [f"{part} {by_module[part] / flops.total:.0%}" for part in ("qkv", "attention", "project", "feed_forward")]
    print(f"{length:5} tokens: {flops.total / 1e9:.2f} GFLOP: {', '.join(shares)}")
