"""Check finds a schedule of steps that moves once an epoch, and says nothing of schedules that are right."""

import functools

import amanda
import pytest
import torch
from amanda.tools.check import Check
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

transformers = pytest.importorskip("transformers")

EPOCHS, BATCHES = 4, 5


def train(make, *, by_epoch, epochs=EPOCHS):
    """Trains a model. All objects are gone when it returns."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = make(optimizer)
    for _ in range(epochs):
        for _ in range(BATCHES):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            if not by_epoch:
                scheduler.step()
        if by_epoch:
            scheduler.step()


def found(*arguments, **options):
    with amanda.apply(Check()) as check:
        train(*arguments, **options)
    return [one.evidence for one in check.findings()]


def one_cycle(optimizer):
    return OneCycleLR(optimizer, 0.1, epochs=EPOCHS, steps_per_epoch=BATCHES)


def linear(optimizer):
    return transformers.get_linear_schedule_with_warmup(optimizer, 2, EPOCHS * BATCHES)


@pytest.mark.parametrize(("make", "name"), [(one_cycle, "OneCycleLR"), (linear, "LambdaLR")])
def test_a_schedule_of_steps_that_moves_once_an_epoch(make, name):
    assert found(make, by_epoch=True) == [
        f"{name} is made for 20 steps: the optimizer has taken 20, the scheduler 4",
    ]
    assert found(make, by_epoch=False) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=EPOCHS),
        lambda optimizer: CosineAnnealingLR(optimizer, EPOCHS),
        lambda optimizer: transformers.get_linear_schedule_with_warmup(optimizer, 1, EPOCHS),
    ],
)
def test_schedules_of_epochs(make):
    assert found(make, by_epoch=True) == []


@pytest.mark.parametrize("by_epoch", [True, False])
def test_training_that_ends_early(by_epoch):
    assert found(one_cycle, by_epoch=by_epoch, epochs=2) == []


@pytest.mark.parametrize("planned", [None, float("inf"), "all"])
def test_schedules_without_a_number_of_steps(planned):
    def make(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, functools.partial(constant, num_training_steps=planned))

    def constant(step, num_training_steps):
        return 1.0

    with amanda.apply(Check()) as check:
        train(make, by_epoch=True)
    assert (check.findings(), check.skipped) == ([], {})
