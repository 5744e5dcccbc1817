"""The use of a scope, for a warning when the scope is gone: it was never entered, or in vain."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from amanda.core.analysis_routine import BackwardUse
from amanda.core.tool import NativeTool, Tool, _Ask
from amanda.core.unmatched import UnmatchedFilterWarning
from amanda.driver.identity import cells, frames


class _Backward(NamedTuple):
    """A tool's routines, without the tool."""

    tool: str
    asks: Sequence[_Ask]
    use: BackwardUse

    def is_in_vain(self) -> bool:
        return bool(self.asks) and all(ask.backward for ask in self.asks) and not self.use


class ScopeUse:
    """Belongs to a scope's finalizer, and refers to no tool: these may refer to the scope."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.is_entered = self.is_decorator = self.has_failed = False
        self._tools = [tool.name for tool in tools]
        # The routines of tools in C++ are not known here. A tool that others build on may be without work.
        self._backward = [
            _Backward(tool.name, tool._asks, tool._backward_use) for tool in tools if not isinstance(tool, NativeTool)
        ]
        self._file, self._line = _line_of_the_program()

    def warn(self) -> None:
        """Called when the scope is collected, or when the program ends."""
        if self.is_entered:
            if not self.has_failed:
                self._warn_in_vain()
        elif not self.is_decorator:
            self._warn(
                UserWarning,
                f"[scope] the scope of {', '.join(self._tools) or 'no tools'} was never entered, so nothing was "
                "instrumented; write: with amanda.apply(...):",
            )

    def in_vain(self) -> list[str]:
        """The names of the tools that look at backward operators only, and saw none."""
        return [one.tool for one in self._backward if one.is_in_vain()]

    def _warn_in_vain(self) -> None:
        for tool in self.in_vain():
            self._warn(
                UnmatchedFilterWarning,
                f"[scope] tool '{tool}' looks at backward operators only, and saw none: none ran while its scope was "
                "entered; call backward() inside the scope, with the forward pass: with amanda.apply(...): "
                "model(x).sum().backward()",
            )

    def _warn(self, category: type[Warning], text: str) -> None:
        warnings.warn_explicit(text, category, self._file, self._line)


def _line_of_the_program() -> tuple[str, int]:
    """The innermost line that is not Amanda's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frames.is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return cells.readable_file(frame.f_code.co_filename), frame.f_lineno
