"""Checks of the arguments of a History."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amanda import StepTool
from amanda.toolkit.arguments import whole_number
from amanda.toolkit.tables import Results

from .alarms import Limits


def checked_tools(tools: Sequence[Results[Any, Any]]) -> list[Results[Any, Any]]:
    for tool in tools:
        if not isinstance(tool, Results) or isinstance(tool, StepTool):
            raise TypeError(f"[history] tools= are tools with results, such as OpStatistics(), got {tool!r}")
    return list(tools)


def checked_limits(limits: object) -> Limits:
    if not isinstance(limits, Limits):
        raise TypeError(f"[history] limits= is a Limits, or None, got {limits!r}")
    return limits


def checked_keep(keep: object) -> int:
    return whole_number(keep, f"[history] keep= is a number of steps, 1 or more, got {keep!r}", 1)
