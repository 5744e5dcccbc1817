"""Where: the operators that a tool's argument `where=` selects."""

from __future__ import annotations

from collections.abc import Callable

from amanda.core import unmatched
from amanda.core.op_context import OpContext
from amanda.core.tool import Tool

__all__ = ["Where"]

MOST_LISTED = 5


class Where:
    """Asks a function of the context, and warns when it has selected no operator.

    Raises:
        TypeError: it is not a function.
    """

    def __init__(self, speaker: str, function: Callable[[OpContext], object]) -> None:
        if not callable(function):
            raise TypeError(f"[{speaker}] where= takes a function of an operator's context, got {function!r}")
        self._speaker, self._function = speaker, function
        self._refused: dict[str, None] = {}  # module paths
        self._selects = False
        self._refuses = False

    @property
    def refuses_all(self) -> bool:
        """True if it was called, and has selected nothing."""
        return self._refuses and not self._selects

    def __call__(self, context: OpContext) -> bool:
        if self._function(context):
            self._selects = True
            return True
        self._refused[context.module_path] = None
        self._refuses = True
        return False

    def tell(self, tool: Tool) -> None:
        """To be called when a scope is left: warns if everything was refused."""
        if self.refuses_all and self._refused:
            listed = ", ".join(map(repr, list(self._refused)[:MOST_LISTED]))
            more = f" and {len(self._refused) - MOST_LISTED} more" if len(self._refused) > MOST_LISTED else ""
            self._refused.clear()
            unmatched.warn_here(
                f"[{self._speaker}] where= of tool '{tool.name}' selected none of the operators that ran; it was asked for "
                f"those with module_path {listed}{more}"
            )
