"""The sessions and calls that tools do not see: they run as without a scope, after one warning."""

from __future__ import annotations

import logging

from amanda.core import fork, scope

_lock = fork.rlock()
_told: list[str] = []


def warn(text: str) -> None:
    """Says it once in a process."""
    scope.note_unseen("unsupported", text)
    with _lock:
        if text in _told:
            return
        _told.append(text)
    logging.getLogger("amanda").warning("[onnxruntime] %s", text)


def remarks() -> list[str]:
    """For `amanda doctor`."""
    return ["what tools were not shown of ONNX Runtime:", *(f"  {text}" for text in _told)] if _told else []
