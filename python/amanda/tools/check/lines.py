"""Lines of the program from which something is called. Imports torch."""

from __future__ import annotations

import os
import sys
from types import FrameType

import torch

from amanda.toolkit.frames import PACKAGE, is_library, line_of, outwards

_TORCH = os.path.dirname(torch.__file__) + os.sep
_MODULE = torch.nn.modules.module.__file__


def program_line(frame: FrameType | None) -> str:
    """The line of the program from which this frame is called: the user's, else a library's that is not torch."""
    outer = [one for one in outwards(frame) if not one.f_code.co_filename.startswith((PACKAGE, _TORCH, "<"))]
    found = next((one for one in outer if not is_library(one.f_code.co_filename)), outer[0] if outer else None)
    return f"{found.f_code.co_filename}:{line_of(found.f_code, found.f_lasti)}" if found is not None else ""


def line_of_model() -> str:
    """The line that calls the outermost module of those that run; outside of modules, the line that runs."""
    outermost: FrameType | None = sys._getframe(1)
    for frame in outwards(sys._getframe(1)):
        if frame.f_code.co_filename == _MODULE:
            outermost = frame
    return program_line(outermost)
