"""Clipping of gradients: the calls of PyTorch's functions for it that run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

from amanda.toolkit.frames import outwards


def clipping() -> Iterator[FrameType]:
    """Those of `torch.nn.utils.clip_grad`, innermost first."""
    return (f for f in outwards(sys._getframe(1)) if f.f_globals.get("__name__") == "torch.nn.utils.clip_grad")


def clipping_by_norm() -> FrameType | None:
    """The call of `clip_grad_norm_` that runs."""
    return next((frame for frame in clipping() if frame.f_code.co_name == "clip_grad_norm_"), None)
