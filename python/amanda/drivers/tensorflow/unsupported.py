"""What tools do not see of TensorFlow: it runs as without a scope, after one warning."""

from __future__ import annotations

import functools
import logging
from typing import Any

from amanda import switches
from amanda.drivers.tensorflow import port

_told: list[str] = []


def warn(text: str) -> None:
    """Says it once in a process."""
    if text not in _told:
        _told.append(text)
        logging.getLogger("amanda").warning("[tensorflow] %s", text)


def remarks() -> list[str]:
    """For `amanda doctor`."""
    return ["what tools were not shown of TensorFlow:", *(f"  {text}" for text in _told)] if _told else []


def patch() -> None:
    port.run_replicas.replace(_run_replicas)


def unpatch() -> None:
    port.run_replicas.restore()


@functools.wraps(port.run_replicas.original)
def _run_replicas(strategy: Any, *args: Any, **kwargs: Any) -> Any:
    """Of the default strategy it is a call of the function."""
    if port.is_default_strategy(strategy) or not switches.is_enabled():
        return port.run_replicas.original(strategy, *args, **kwargs)
    warn(f"{type(strategy).__name__}.run() runs without tools; run the model without a distribution strategy")
    with switches.disabled():
        return port.run_replicas.original(strategy, *args, **kwargs)
