"""Models of EffectivePath's tests, each with the neurons that it is made of.

Weights and samples are small integers: sums are exact in every order, many contributions are equal, and equal means
the same sets.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from neuron_paths import add, concatenated, conv, flat, linear, mapped, mean, norm, plain, pool, relu, sample, size_of
from torch import nn

THETAS = [0.1, 0.5, 0.9, 1.0]


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 4, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(16, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.avg_pool2d(F.relu(self.conv2(x)), 2, 1)
        return self.fc2(torch.relu_(self.fc1(x.flatten(1))))

    def cells(self, x):
        a = sample(x)
        b = conv(a, self.conv1.weight, self.conv1.bias)
        c = relu(b)
        d = pool(c, 2, 2)
        e = conv(d, self.conv2.weight, self.conv2.bias, padding=1)
        f = relu(e)
        g = pool(f, 2, 1, kind="sum")
        h = flat(g)
        i = linear(h, self.fc1.weight, self.fc1.bias)
        j = relu(i)
        return [a, b, c, d, e, f, g, h, i, j, linear(j, self.fc2.weight, self.fc2.bias)]


class Residual(nn.Module):
    """Batch normalization, one with negative weights, and skip connections, in place and not."""

    def __init__(self):
        super().__init__()
        self.stem, self.first = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv, self.second = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        x = F.relu(self.first(self.stem(x)), inplace=True)
        y = self.second(self.conv(x))
        y += x
        y = torch.relu_(y)
        y = self.conv(y) + y
        return F.linear(y.mean([2, 3]), self.fc.weight)

    def cells(self, x):
        a = sample(x)
        b = conv(a, self.stem.weight, padding=1)
        c = norm(b, self.first)
        d = relu(c)
        e = conv(d, self.conv.weight, padding=1, groups=2)
        f = norm(e, self.second)
        g = add(f, d)
        h = relu(g)
        i = conv(h, self.conv.weight, padding=1, groups=2)
        j = add(i, h)
        k = mean(j)
        return [a, b, c, d, e, f, g, h, i, j, k, linear(k, self.fc.weight)]


class PreActivation(nn.Module):
    """A tensor that goes to a normalization with a negative weight, which may want less of it, and to a sum; and
    normalizations that want less of a maximum, and something of neurons that are zero."""

    def __init__(self):
        super().__init__()
        self.conv, self.first = nn.Conv2d(2, 3, 2, stride=2, padding=1), nn.BatchNorm2d(3)
        self.second, self.fc = nn.BatchNorm2d(3), nn.Linear(3 * 4, 3)

    def forward(self, x):
        x = self.conv(x)
        x = F.relu(F.max_pool2d(self.first(x) + x, 2, 1))
        return self.fc(self.second(x).flatten(1))

    def cells(self, x):
        a = sample(x)
        b = conv(a, self.conv.weight, self.conv.bias, stride=2, padding=1)
        c = norm(b, self.first)
        d = add(c, b)
        e = pool(d, 2, 1)
        f = relu(e)
        g = norm(f, self.second)
        h = flat(g)
        return [a, b, c, d, e, f, g, h, linear(h, self.fc.weight, self.fc.bias)]


class Shapes(nn.Module):
    """What moves elements, and what maps one to one, functional; scores end in a softmax."""

    def __init__(self):
        super().__init__()
        self.conv, self.matrix = nn.Conv2d(2, 2, 2, dilation=2), nn.Parameter(torch.empty(4 * 9, 3))

    def forward(self, x):
        y = self.conv(x)
        y = F.max_pool2d(torch.cat([y, -y], 1), 3, 1, padding=1)
        y = y.permute(0, 2, 3, 1).reshape(len(x), -1) * 0.5
        return (torch.tanh(y) @ self.matrix).softmax(-1)

    def cells(self, x):
        a = sample(x)
        b = conv(a, self.conv.weight, self.conv.bias, dilation=2)
        c = mapped(b, lambda _, value: -value, lambda _: -1)
        d = concatenated(b, c)
        e = pool(d, 3, 1, padding=1)
        channels, height, wide = size_of(e)
        order = [(k, i, j) for i in range(height) for j in range(wide) for k in range(channels)]
        f = flat(e, order)
        g = mapped(f, lambda _, value: math.tanh(value / 2), stops=True)
        h = linear(g, self.matrix.T)
        total = sum(math.exp(value) for value in h.values.values())
        return [a, b, c, d, e, f, g, h, mapped(h, lambda _, value: math.exp(value) / total)]


MODELS = {"lenet": (LeNet, (1, 8, 8)), "residual": (Residual, (2, 5, 5)), "pre-activation": (PreActivation, (2, 4, 4))}
MODELS["shapes"] = (Shapes, (2, 5, 5))
each_model = pytest.mark.parametrize("name", MODELS)


def made(name, seed=0, integers=True, samples=3):
    """A model in float64, and samples for it."""
    make, shape = MODELS[name]
    generator, model = torch.Generator().manual_seed(seed), make().double().eval()

    def values(shape, low=-3):
        if integers:
            return torch.randint(low, 4, shape, generator=generator).double()
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(values(parameter.shape))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.copy_(values(module.running_mean.shape))
                module.running_var.copy_(values(module.running_var.shape).abs() + 0.5)
    return model, values((samples, *shape), low=-1)


def same_path(found, expected):
    assert plain(found) == plain(expected)
