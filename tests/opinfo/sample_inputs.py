"""sample_inputs: the inputs that PyTorch's operator database has for an operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_utils import SEED, set_rng_seed


def sample_inputs(op: Any, dtype: torch.dtype, *, device: str = "cpu", requires_grad: bool = False) -> Iterator[Any]:
    """The same as `op.sample_inputs(device, dtype, requires_grad)` yields, with its random numbers.

    That one looks for a unittest among the callers, and for that at all imported modules, which takes longer
    than all else.
    """
    set_rng_seed(SEED)
    for sample in op.sample_inputs_func(op, device, dtype, requires_grad):
        yield sample
        set_rng_seed(SEED)
