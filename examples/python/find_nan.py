"""Finds the cause of a NaN loss: a language model gets a batch with an empty text, and the tool names the operator.

Every position of the empty text is padding, so a mask of -inf leaves its attention nothing to look at: softmax divides
zero by zero. From there the NaN goes through all layers into the loss, and through the backward pass into all weights.
"""

import amanda
import torch
from amanda.tools.nonfinite import NaNSentinel, NonfiniteError
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x, padding):
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(padding[:, None, :], -torch.inf)
        return x + self.out(torch.softmax(scores, dim=-1) @ value)


class Model(nn.Module):
    def __init__(self, words=50, width=16, layers=3):
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, tokens == 0)
        return self.head(x)


torch.manual_seed(0)
model = Model()
tokens = torch.randint(1, 50, (4, 7))
tokens[2] = 0  # the empty text
try:
    with amanda.apply(NaNSentinel()):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
except NonfiniteError as error:
    print(error)
