"""Masks: what gradients hold while a path is extracted."""

from __future__ import annotations

import torch
from torch import Tensor

from amanda import Error

AGAINST = 2.0**-7
"""A mask is 1 for a neuron on the path and 0 for another one, and this for a neuron of which the path wants less: a
smaller positive value, or a greater negative one. Autograd adds up the masks of a tensor's consumers: the sum is at
least 1 if one of them wants more, and then more is wanted."""


def start(scores: Tensor, classes: Tensor) -> Tensor:
    """The mask of the scores: one class for each sample, of which the path wants more."""
    own = scores.detach().gather(1, classes[:, None])
    return torch.zeros_like(scores).scatter_(1, classes[:, None], torch.where(own >= 0, 1.0, AGAINST).to(own.dtype))


def wanted(mask: Tensor, sign: Tensor) -> Tensor:
    """The direction in which the path wants each neuron to change: 1 or -1. `sign` is that of its value; 0 counts as
    1."""
    own = torch.where(sign < 0, -1.0, 1.0)
    return torch.where(mask >= 1, own, -own)


def through(mask: Tensor, sign: Tensor, x: Tensor, slope: Tensor | float, stops: bool) -> Tensor:
    """The mask of the input `x` of a pointwise operator, given that of its output.

    Arguments:
        sign: of the output.
        slope: a number of the sign with which the output depends on `x`; 0 ends the path.
        stops: an output of 0 ends it, too.
    """
    more = wanted(mask, sign) * slope
    passes = (mask > 0) & (more != 0)
    if stops:
        passes = passes & (sign != 0)
    codes = torch.where(more * torch.where(x < 0, -1.0, 1.0) > 0, 1.0, AGAINST) * passes
    return codes.sum_to_size(x.shape).to(mask.dtype)


def checked(mask: Tensor, where: str) -> Tensor:
    """Refuses what is no sum of masks.

    Raises:
        amanda.Error: it is none.
    """
    count = mask.double() / AGAINST
    if not bool(((count >= 0) & (count == count.round())).all()):
        raise Error(
            f"[effective_path] the gradient that arrives at {where} is no mask: what runs after it is not seen by tools "
            "(amanda doctor says why), or is an autograd.Function; call operators of PyTorch there"
        )
    return mask
