"""The line of the program that calls the model. Imports torch."""

from __future__ import annotations

import sys
from types import FrameType

import torch

from amanda.toolkit.frames import outwards, program_line

_MODULE = torch.nn.modules.module.__file__


def line_of_model() -> str:
    """The line that calls the outermost module of those that run; outside of modules, the line that runs."""
    outermost: FrameType | None = sys._getframe(1)
    for frame in outwards(sys._getframe(1)):
        if frame.f_code.co_filename == _MODULE:
            outermost = frame
    return program_line(outermost)
