"""Tools that follow a program while it runs line by line, which compiled code does not."""

from __future__ import annotations

from amanda import _core
from amanda.op_context import OpContext


def check(context: OpContext, why: str) -> None:
    """
    Raises:
        amanda.Error: it is an operator of a compiled function.
    """
    if context.is_symbolic:
        raise _core.Error(
            f"[{context.tool.name}] {type(context.tool).__name__} can't work in compiled functions, as {context.op.name} "
            f'is in one: {why}; apply it with compiled="eager"'
        )
