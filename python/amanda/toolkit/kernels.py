"""Kernels that a tool runs in place of operators: Flops counts them, though no tool is shown the operators of a routine."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from amanda import _tools
from amanda.reports.places import Place
from amanda.toolkit.arrays import of_torch

__all__ = ["ran_layer", "ran_recurrent"]


def ran_layer(kernel: str, place: Place, result: torch.Tensor, weight: torch.Tensor) -> None:
    """A linear layer or a convolution. `weight`: the first dimension is that of the results."""
    if _tools.is_counting_flops():
        each = math.prod(weight.shape[1:])
        _tools.count_flops(kernel, place.module_path, 2 * of_torch.plain(result).numel() * each)


def ran_recurrent(kernel: str, place: Place, x: torch.Tensor, weights: Iterable[torch.Tensor]) -> None:
    """A recurrent layer or cell: each vector of `x` is multiplied by each matrix once."""
    if _tools.is_counting_flops():
        rows = math.prod(of_torch.plain(x).shape[:-1])
        _tools.count_flops(kernel, place.module_path, 2 * rows * sum(weight.numel() for weight in weights))
