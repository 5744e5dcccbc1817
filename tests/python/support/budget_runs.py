"""Training in a budget of memory, and the budgets that Rematerialization's errors name."""

import contextlib
import re

import amanda
import torch
from amanda.research.rematerialization import Rematerialization
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, ResNetConfig, ResNetForImageClassification

UNLIMITED = 1 << 40


def total(tool, field):
    return sum(getattr(row, field) for row in tool.rows())


def sufficient(error):
    """The budget that works in every run."""
    return int(
        re.findall(r"A budget that works for it in every run, as nothing is evicted, is (\d+) bytes", str(error))[0]
    )


def least(error):
    """The budget that may work."""
    found = re.findall(r"; less may work, from (\d+) on$", str(error))
    return int(found[0]) if found else sufficient(error)


def in_least_memory(step):
    """`step(tool)` with the smallest budget that errors lead to, in which what is evicted is the same in each run."""
    budget = 1
    while True:
        tool = Rematerialization(budget, costs="equal")
        try:
            return tool, step(tool)
        except amanda.Error as error:
            budget, before = least(error), budget
        assert budget > before


def mlp():
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32))]
    return nn.Sequential(*layers), lambda model: model(torch.linspace(-1, 1, 2048).view(64, 32)).square().mean()


def bert():
    config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    words, labels = torch.arange(64).view(4, 16) % 50, torch.tensor([0, 1, 1, 0])
    return BertForSequenceClassification(config), lambda model: model(input_ids=words, labels=labels).loss


def resnet():
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3)
    images, labels = torch.linspace(-1, 1, 4 * 3 * 32 * 32).view(4, 3, 32, 32), torch.tensor([0, 1, 2, 0])
    return ResNetForImageClassification(config), lambda model: model(pixel_values=images, labels=labels).loss


def convolutions():
    """In-place activations, dropout, pooling with indices."""
    model = nn.Sequential(
        *[nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Dropout(0.3)],
        *[nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)],
        *[nn.Conv2d(8, 8, 3), nn.InstanceNorm2d(8, track_running_stats=True), nn.Sigmoid(), nn.Flatten()],
        nn.Linear(288, 4),
    )
    images = torch.linspace(-1, 1, 4 * 3 * 16 * 16).view(4, 3, 16, 16)
    return model, lambda model: model(images).square().mean()


def train(make, steps, tool=None):
    """Losses, final state and random state."""
    torch.manual_seed(0)
    model, loss_of = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    with amanda.apply(tool) if tool else contextlib.nullcontext():
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            del loss
    return losses, model.state_dict(), torch.get_rng_state()
