"""A mixture of experts, with everything that multiplies by three-dimensional parameters, and layers of other kinds."""

import torch
import torch.nn.functional as F


class Experts(torch.nn.Module):
    """Three experts of two layers: grouped, batched, one by one, or as a sum of products."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.up = torch.nn.Parameter(torch.randn(3, 16, 8))
        self.down = torch.nn.Parameter(torch.randn(3, 8, 16))

    def forward(self, x):
        return WAYS[self.way](x, self.up, self.down)


def grouped(x, up, down):
    ends = torch.tensor([2, 2, len(x)], dtype=torch.int32)  # the second one has no rows
    hidden = F.grouped_mm(x, up.mT, offs=ends).relu()
    return F.grouped_mm(hidden, down.mT, offs=ends)


def batched(x, up, down):
    return torch.bmm(torch.bmm(x.expand(3, *x.shape), up.mT).relu(), down.mT).sum(0)


def broadcast(x, up, down):
    return torch.matmul(torch.matmul(x, up.mT).relu(), down.mT).sum(0)


def one_by_one(x, up, down):
    return sum(F.linear(F.linear(x, up[i]).relu(), down[i]) for i in range(3))


def summed(x, up, down):
    return torch.einsum("ebf,edf->bd", torch.einsum("bd,efd->ebf", x, up).relu(), down)


WAYS = {way.__name__: way for way in (grouped, batched, broadcast, one_by_one, summed)}


class Mixture(torch.nn.Module):
    """The head shares the weight of the embedding."""

    def __init__(self, way="grouped"):
        super().__init__()
        self.embed = torch.nn.Embedding(16, 8)
        self.scale = torch.nn.Parameter(torch.ones(8))
        self.proj = torch.nn.Linear(8, 8)
        self.experts = Experts(way)
        self.rnn = torch.nn.LSTM(8, 8, batch_first=True)
        self.head = torch.nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.proj(self.embed(tokens) * self.scale)
        x = self.experts(x.flatten(0, -2)).view(x.shape)
        return self.head(self.rnn(x)[0])


def tokens():
    return torch.arange(12).view(2, 6)
