"""What the tests of CuptiProfiler share: programs, and rows by name."""

import amanda
import torch
from amanda.tools.cupti_profiler import CuptiProfiler


def profiled(program, **options):
    profiler = CuptiProfiler(**{"gpu": False} | options)
    with amanda.apply(profiler):
        program()
    return profiler


def calls(profiler, by="op"):
    return {(row.name, row.phase): row.calls for row in profiler.rows(by)}


def row(profiler, name, by="op", **fields):
    (found,) = [
        row
        for row in profiler.rows(by)
        if row.name == name and all(getattr(row, field) == value for field, value in fields.items())
    ]
    return found


def cnn():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 13 * 13, 10),
    )
    return model, torch.randn(8, 3, 32, 32)


def transformer():
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return torch.nn.Sequential(layer), torch.randn(4, 48, 128)


def train_step(model, x):
    model.zero_grad(set_to_none=True)
    model(x).sum().backward()
