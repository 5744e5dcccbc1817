"""An analysis routine as the core calls it, with what messages need to know of its calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from amanda.core.asked_names import AskedNames

if TYPE_CHECKING:
    from amanda.core.op_context import OpContext


class BackwardUse:
    """True, once a routine of backward operators was called. It holds no tool: a scope's finalizer has it."""

    __slots__ = ("was_called",)

    def __init__(self) -> None:
        self.was_called = False

    def __bool__(self) -> bool:
        return self.was_called


class AnalysisRoutine:
    """A routine of `Tool.add_inst_for_op`. The core calls it once for each operator."""

    __slots__ = ("_backward_use", "_filters", "_routine", "_tool")

    def __init__(
        self,
        routine: Callable[[OpContext], object],
        tool: str,
        backward: bool,
        filters: Sequence[Sequence[AskedNames]],
        backward_use: BackwardUse,
    ) -> None:
        self._routine, self._tool, self._filters = routine, tool, filters
        self._backward_use = backward_use if backward else BackwardUse()

    def __call__(self, context: OpContext) -> None:
        self._backward_use.was_called = True
        for names in (names for several in self._filters for names in several if names.waiting):
            names.meet(context)
        returned = self._routine(context)
        if returned is not None:
            _check_returned(self._tool, returned, context)


def _check_returned(tool: str, returned: object, context: OpContext) -> None:
    """Refuses a function that an analysis returns, and has scheduled nothing.

    Raises:
        TypeError: it does.
    """
    is_function = inspect.isroutine(returned) or isinstance(returned, functools.partial)
    if not is_function or any(action.tool == tool for action in context._handle.actions()):
        return
    name = getattr(returned, "__name__", type(returned).__name__)
    method = "insert_after_op" if context.is_forward() else "insert_after_backward_op"
    raise TypeError(
        f"[tool] {tool}: the analysis of {context._operator_text()} returned {name} and scheduled nothing, so that {name} "
        f"will not run; schedule it in the analysis: context.{method}({name})"
    )
