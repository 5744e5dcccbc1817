"""Right training loops that look like the mistakes which rules of `Check` are for."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


def net(*shape, dropout=0.1):
    first, hidden, last = shape
    return nn.Sequential(
        nn.Linear(first, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, last)
    )


def sgd(*modules, **more):
    return torch.optim.SGD([one for module in modules for one in module.parameters()], 0.01, **more)


def tasks_are_combined():
    """The gradient of each task is taken alone, by one line; the step gets their sum, as a new tensor and in place."""
    model, x = net(4, 8, 2, dropout=0.0), torch.randn(6, 4)
    optimizer = sgd(model)
    for i in range(8):
        found = []
        for task in range(2):
            optimizer.zero_grad()
            model(x)[:, task].square().mean().backward()
            found.append([one.grad.clone() for one in model.parameters()])
        for one, *each in zip(model.parameters(), *found, strict=True):
            if i < 4:
                one.grad = sum(each)
            else:
                one.grad.copy_(sum(each))
        optimizer.step()


def one_function_for_all_losses():
    """The generator's loss gives gradients to the discriminator, which clears them: the same line calls `backward()`."""
    generator, discriminator = net(3, 8, 4), net(4, 8, 1)

    def optimize(optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    optimizers = [torch.optim.Adam(one.parameters()) for one in (generator, discriminator)]
    for _ in range(6):
        made = generator(torch.randn(6, 3))
        optimize(optimizers[1], discriminator(made.detach()).mean() - discriminator(torch.randn(6, 4)).mean())
        optimize(optimizers[0], -discriminator(made).mean())


def sharpness_aware_in_one_line():
    model, x, y = net(4, 8, 3, dropout=0.0), torch.randn(6, 4), torch.randint(3, (6,))
    optimizer = sgd(model)

    def backward():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()

    for _ in range(5):
        backward()
        with torch.no_grad():
            moves = [0.05 * one.grad for one in model.parameters()]
            for one, move in zip(model.parameters(), moves, strict=True):
                one.add_(move)
        backward()
        with torch.no_grad():
            for one, move in zip(model.parameters(), moves, strict=True):
                one.sub_(move)
        optimizer.step()


def batches_are_left_out():
    """Steps of losses that are too large are left out, three times."""
    model = net(4, 8, 3)
    optimizer = sgd(model)
    for i in range(12):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
        if i not in (3, 4, 8):
            optimizer.step()


def encoders_that_follow_by_data():
    """Momentum encoders, in training mode; one is written to through `.data`, the other one every third step."""
    student = net(4, 8, 3)
    teachers = copy.deepcopy(student), copy.deepcopy(student)
    optimizer = sgd(student)
    for i in range(9):
        x = torch.randn(6, 4)
        with torch.no_grad():
            goal = sum(teacher(x) for teacher in teachers)
        optimizer.zero_grad()
        F.mse_loss(student(x), goal).backward()
        optimizer.step()
        for one, other in zip(teachers[0].parameters(), student.parameters(), strict=True):
            one.data = 0.9 * one.data + 0.1 * other.data
        if i % 3 == 2:
            teachers[1].load_state_dict(student.state_dict())


def frozen_layers_of_a_model():
    """Dropout in them is on, and is not recorded: their input needs no gradient."""
    model = nn.Sequential(net(4, 8, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    optimizer = sgd(model[1])
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
        optimizer.step()


def weights_of_zeros():
    """Branches that begin with zeros: of residuals, of LoRA, and a table of positions."""
    first, inner, last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    down, up, head = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False), nn.Linear(8, 3)
    table = nn.Embedding(4, 4)
    for one in (last, up, table):
        nn.init.zeros_(one.weight)
    optimizer = sgd(first, inner, last, down, up, head, table)
    for _ in range(5):
        hidden = first(torch.randn(6, 4) + table(torch.randint(4, (6,))))
        hidden = hidden + last(inner(hidden).relu()) + up(down(hidden))
        optimizer.zero_grad()
        F.cross_entropy(head(hidden), torch.randint(3, (6,))).backward()
        optimizer.step()


class Encoded(nn.Module):
    def __init__(self, *shape, **kind):
        super().__init__()
        self.register_buffer("table", torch.randn(shape))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, **kind)

    def forward(self, x):
        first, second = x.shape[:2]
        return self.layer(x + (self.table[:first] if self.table.shape[1] == 1 else self.table[:, :second]))


class Factorized(nn.Module):
    """Of a video: attention over the patches of each frame, then over the frames, which have encodings."""

    def __init__(self):
        super().__init__()
        self.frames = nn.Parameter(torch.randn(16, 1, 8))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=first) for first in (True, False))

    def forward(self, video):
        hidden = video + self.frames[: len(video)]
        return self.layers[1](self.layers[0](hidden))


def encodings_of_positions():
    x = torch.randn(4, 6, 8)
    for model in (Encoded(9, 1, 8), Encoded(1, 9, 8, batch_first=True), Factorized()):
        model(x).mean().backward()
        Encoded(9, 1, 8, batch_first=True)(torch.randn(6, 6, 8)).mean().backward()  # not known


def a_schedule_that_ends_with_the_training():
    model = net(4, 8, 3)
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)
    waits = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.0)
    for _ in range(10):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
        waits.param_groups[0]["params"][0].grad = torch.ones(2)
        optimizer.step()
        waits.step()
        schedule.step()


TRAININGS = [
    tasks_are_combined,
    one_function_for_all_losses,
    sharpness_aware_in_one_line,
    batches_are_left_out,
    encoders_that_follow_by_data,
    frozen_layers_of_a_model,
    weights_of_zeros,
    encodings_of_positions,
    a_schedule_that_ends_with_the_training,
]
