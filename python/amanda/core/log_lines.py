"""The lines that the core logs, with the place in the program where Python knows more of it than the core."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable

from amanda import _core
from amanda.driver.identity import cells, frames

_MOST_NAMED = 3
_OF_ANOTHER_SHAPE = "put a tensor of another shape in place of one that requires a gradient"
_scopes: Callable[[], Iterable[_core.Scope]] = tuple


def follow(scopes: Callable[[], Iterable[_core.Scope]]) -> None:
    """`scopes` returns the scopes that the calling thread has entered."""
    global _scopes
    _scopes = scopes


def write(line: str) -> None:
    """Writes a line to the log. It is called on the thread on which the line has its cause."""
    if _OF_ANOTHER_SHAPE in line:
        line += _routines_here()
    logging.getLogger("amanda").warning(cells.in_text(line))


def _routines_here() -> str:
    """The routines that are scheduled on operators of the lines of the program that are running; empty if unknown."""
    lines = {f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in frames.outwards(sys._getframe())}
    texts = dict.fromkeys(
        f"{_text(action)}, {action.source}"
        for scope in _scopes()
        for action in scope.describe()
        if action.source in lines and action.phase == "forward" and not action.removed
    )
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    of = "The routine is" if len(texts) == 1 else "It is one of these routines:"
    return f" {of} {'; '.join(list(texts)[:_MOST_NAMED])}{more}." if texts else ""


def _text(action: _core.ActionDescription) -> str:
    module = f" in {action.module_path}" if action.module_path else ""
    return f"'{action.tool}': {action.routine} {action.when} {action.operator}{module}"
