"""Compiled functions that run without the tools that asked for them, and why. Each is said once."""

from __future__ import annotations

import logging
from typing import Any

from amanda.core import fork

_lock = fork.rlock()
_said: dict[str, str] = {}  # why, by function


def say(gm: Any, reason: str) -> None:
    """Warns."""
    function = function_of(gm)
    with _lock:
        if function in _said:
            return
        _said[function] = reason
    logging.getLogger("amanda").warning(
        '[compile] %s, runs without tools: %s. With compiled="eager", tools see it (said once for each function)',
        function,
        reason,
    )


def described(why: str, error: Exception) -> str:
    """A reason with the first line of the error: "the backend inductor could not compile it with taps: ..."."""
    return f"{why}: {first_line(error)}"


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def remarks() -> list[str]:
    """For `amanda doctor`."""
    with _lock:
        said = dict(_said)
    if not said:
        return []
    head = "compiled with torch.compile, and run without tools:"
    return [head, *(f"  {function}: {why}" for function, why in said.items())]


def function_of(gm: Any) -> str:
    """The line of the program that its first operator comes from."""
    for node in gm.graph.nodes:
        stack = node.stack_trace
        if stack and node.op != "placeholder":
            place: str = stack.strip().splitlines()[0].strip()
            return place
    return "a compiled function"


def operators_of(gm: Any) -> list[tuple[str, str]]:
    """The functions that the nodes of `gm` call, where no more is known. Each has an empty reason; the format is that
    of `amanda._core.Artifact.unseen`."""
    calls = (node.target for node in gm.graph.nodes if node.op.startswith("call_"))
    return [(str(getattr(target, "__name__", target)), "") for target in calls]
