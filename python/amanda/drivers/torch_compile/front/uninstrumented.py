"""Compiled functions that run without the tools that asked for them, and why. Each is said once."""

from __future__ import annotations

import logging
from typing import Any

from amanda import _fork

_lock = _fork.rlock()
_said: dict[str, str] = {}  # why, by function


def say(gm: Any, backend: str, error: Exception) -> str:
    """The program's backend could not compile an instrumented graph. Returns a name of the function."""
    function = _function_of(gm)
    with _lock:
        if function in _said:
            return function
        reason = str(error).strip().partition("\n")[0]
        _said[function] = f"{backend}: {type(error).__name__}: {reason}"
    logging.getLogger("amanda").warning(
        "[compile] the backend %s could not compile %s with taps, so it runs without tools: %s: %s. "
        'With compiled="eager", tools see it (said once for each function)',
        backend,
        function,
        type(error).__name__,
        reason,
    )
    return function


def remarks() -> list[str]:
    """For `amanda doctor`."""
    with _lock:
        said = dict(_said)
    if not said:
        return []
    head = "compiled with torch.compile, and run without tools, since the backend could not compile it with taps:"
    return [head, *(f"  {function}: {why}" for function, why in said.items())]


def _function_of(gm: Any) -> str:
    """The line of the program that its first operator comes from."""
    for node in gm.graph.nodes:
        stack = node.stack_trace
        if stack and node.op != "placeholder":
            place: str = stack.strip().splitlines()[0].strip()
            return place
    return "a compiled function"
