"""Tools that follow a program of PyTorch while it runs line by line, which compiled code and other frameworks do not."""

from __future__ import annotations

from amanda import _core
from amanda.core.op_context import OpContext
from amanda.toolkit.frameworks import is_torch
from amanda.toolkit.skips import Skips

__all__ = ["check", "leaves_out"]


def check(context: OpContext, why: str) -> None:
    """For tools that edit: without the edit, the program would compute something else than its user believes.

    Raises:
        amanda.Error: it is an operator of a compiled function, or of another framework.
    """
    tool, op = context.tool, context.op.name
    if not is_torch(context):
        raise _core.Error(
            f"[{tool.name}] {type(tool).__name__} can't work on {op}: {why}; it is for PyTorch's operators alone"
        )
    if context.is_symbolic:
        raise _core.Error(
            f"[{tool.name}] {type(tool).__name__} can't work in compiled functions, as {op} is in one: {why}; apply it "
            'with compiled="eager"'
        )


def leaves_out(context: OpContext, skips: Skips, why: str) -> bool:
    """For tools that look: True, and the operator is counted, if `check` would refuse it. It runs without the tool."""
    if not is_torch(context):
        skips.add("elsewhere", f"{context.op.name}: {why}")
        return True
    if context.is_symbolic:
        skips.add("compiled", f'{context.op.name}: {why}; compiled="eager" shows it')
        return True
    return False
