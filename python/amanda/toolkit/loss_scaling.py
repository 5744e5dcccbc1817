"""LossScaling: by what `torch.amp.GradScaler` multiplies losses, and so the gradients of them."""

from __future__ import annotations

import sys
from typing import Any

from amanda.core import fork
from amanda.core.op_context import OpContext
from amanda.core.tool import Tool
from amanda.driver.identity.frames import outwards

__all__ = ["LossScaling", "calling_scaler"]

_BETWEEN = ("amanda.", "torch._tensor", "torch.overrides", "torch.utils.")  # what may be called between


class LossScaling(Tool):
    """Tools that read gradients depend on it."""

    def __init__(self) -> None:
        super().__init__("loss scaling")
        self._lock = fork.lock()  # guards the next
        self._scales: dict[float, None] = {}
        self.add_inst_for_op(self._analyze, ops="aten::mul", optional=True)

    def scales(self) -> list[float]:
        """In the order in which they were used first."""
        with self._lock:
            return list(self._scales)

    def reset(self) -> None:
        """Forgets all scales."""
        with self._lock:
            self._scales.clear()

    def caption(self) -> str:
        """A caption for tables of gradients; empty if no loss was scaled."""
        scales = self.scales()
        if not scales:
            return ""
        low, high = (f"{scale:,.10g}" for scale in (min(scales), max(scales)))
        by = low if low == high else f"{low} to {high}"
        return f"scaled by {by} (GradScaler): gradients of losses that it scaled are as many times as large"

    def _analyze(self, context: OpContext) -> None:
        if calling_scaler() is not None:
            context.insert_before_op(self._on_scale, inputs=[])

    def _on_scale(self) -> None:
        scaler = calling_scaler()
        if scaler is not None:
            scale = scaler.get_scale()
            with self._lock:
                self._scales[scale] = None


def calling_scaler() -> Any:
    """The GradScaler whose method calls the operator that runs; None if something else calls the operator.

    To be called in a routine, of whatever module.
    """
    from torch.amp import GradScaler

    for frame in outwards(sys._getframe(2)):
        if not str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
            found = frame.f_locals.get("self")
            return found if isinstance(found, GradScaler) else None
    return None
