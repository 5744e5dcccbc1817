"""Where Dynamo asks for its callback: on threads whose scopes say so, it gets one that instruments what it compiles.

This module is imported with amanda, and must not import torch._dynamo; the others of this package do.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

Callback = Any  # of Dynamo's: compiles a frame


def callback_for(callback: Callback, from_stance: Callable[[Callback], Callback]) -> Callback:
    """Dynamo's callback for a compiled function that runs on this thread now. `from_stance`: what Dynamo does with the
    function's own callback, by torch.compiler.set_stance.

    None: the function runs eagerly.
    """
    module = _callbacks()
    return module.instrumented(callback, from_stance) if module else None


def describe() -> str:
    """For `amanda doctor`."""
    if "torch._dynamo" not in sys.modules:
        return 'ready for compiled="graph", when a program imports torch._dynamo'
    return 'compiled="graph" is available' if _callbacks() else _refusals[0]


_refusals: list[str] = []


@functools.cache
def _callbacks() -> ModuleType | None:
    """None: this torch does not fit. That is said once."""
    try:
        from amanda.drivers.torch_compile import callbacks
    except ImportError as refused:
        _refusals.append(str(refused))
        logging.getLogger("amanda").warning("%s. Until then, compiled functions run eagerly in scopes", refused)
        return None
    return callbacks
