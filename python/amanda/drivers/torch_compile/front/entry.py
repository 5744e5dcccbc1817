"""Where Dynamo asks for its callback: on threads whose scopes say so, it gets one that instruments what it compiles.

This module is imported with amanda, and must not import torch._dynamo; the others of this package do.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from amanda import _core
from amanda.drivers.torch import port

Callback = Any  # of Dynamo's: compiles a frame


def callback_for(callback: Callback, from_stance: Callable[[Callback], Callback]) -> Callback:
    """Dynamo's callback for a compiled function that runs on this thread now. `from_stance`: what Dynamo does with the
    function's own callback, by torch.compiler.set_stance.

    None if the function runs eagerly.
    """
    module = _callbacks()
    if module is not None:
        return module.instrumented(callback, from_stance)
    chosen = from_stance(callback)
    return chosen if chosen in (None, False) else _refuse


def refusal() -> str:
    """The reason why no function can be instrumented; empty if there is none."""
    return "" if _callbacks() else _refusals[0].removeprefix("[compile] ")


def is_built() -> bool:
    return importlib.util.find_spec("amanda._torch_compile") is not None


def describe() -> str:
    """For `amanda doctor`."""
    if not is_built():
        return _NOT_BUILT.removeprefix("[compile] ")
    if port.DYNAMO not in sys.modules:
        return 'ready for compiled="graph", when a program imports torch._dynamo'
    if not _callbacks():
        return _refusals[0]
    from amanda.drivers.torch_compile import port as own

    return f'compiled="graph" is available: {len(own.names.found)} private names are used, and all are there'


_NOT_BUILT = "[compile] this build of amanda has no driver for compiled functions; build it in a checkout"
_refusals: list[str] = []


@functools.cache
def _callbacks() -> ModuleType | None:
    """The module of the driver's callbacks. None if there is no driver, or it does not fit this torch."""
    if not is_built():
        _refusals.append(_NOT_BUILT)
        return None
    try:
        from amanda.drivers.torch_compile.front import callbacks
    except ImportError as refused:
        _refusals.append(str(refused))
        return None
    return callbacks


def _refuse(*frame: object) -> None:
    """A callback of Dynamo's; here and not earlier an error leaves nothing of Dynamo's state behind."""
    raise _core.Error(
        f'{_refusals[0]}. Until then, compiled="eager" runs compiled functions eagerly, under the tools, and '
        'compiled="opaque" as they are, unseen'
    )
