"""The check of a scope for writes that change no version. A module further out makes it: `use`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from amanda.core.evidence import Evidence
from amanda.core.tool import Tool


class WriteCheck(Protocol):
    """Finds them, by tools that run before and after those of the scope."""

    first: Tool
    last: Tool

    def findings(self) -> Sequence[Any]: ...

    def evidence(self) -> Evidence: ...


_make: Callable[[], WriteCheck]


def use(make: Callable[[], WriteCheck]) -> None:
    """Sets what makes a check."""
    global _make
    _make = make


def made() -> WriteCheck:
    """A check for one scope."""
    return _make()
