"""The GradScaler that calls an operator."""

from __future__ import annotations

import sys
from typing import Any

from amanda.toolkit.frames import outwards


def calling_scaler() -> Any:
    """The `torch.amp.GradScaler` whose `scale` calls the operator that runs; else None. Costs one walk of frames."""
    for frame in outwards(sys._getframe(1)):
        if frame.f_globals.get("__name__") == "torch.amp.grad_scaler" and "self" in frame.f_locals:
            return frame.f_locals["self"]
    return None
