"""Programs for tests of Profile, and what their rows say."""

from __future__ import annotations

import linecache
import time

import amanda
import torch
from amanda.tools.profile import Profile

NAP = 0.2  # longer than all else these programs do, on a busy machine, too
STEPS = 3


class Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(NAP)
        return grad


def line_of(file, text):
    """The file's only line of code with this text, as rows name it."""
    lines = enumerate(linecache.getlines(file), 1)
    (number,) = [number for number, line in lines if text in line and f'"{text}' not in line]
    return f"{file}:{number}"


def by_line(profile):
    return {row.name: row for row in profile.rows("line")}


def profiled(program, steps=STEPS, **options):
    profile = Profile(**{"backward": True} | options)
    with amanda.apply(profile):
        for _ in range(steps):
            program()
    return profile
