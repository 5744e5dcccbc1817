"""Native: where tools in Python work in C++, and how.

`NativeTool` is a tool that is written in C++; `NativeRoutine` is a routine in C++ with one in Python for what it
declines. The modules `cupti`, `rematerialization`, `tools` and `torch_tools` are the compiled halves of the shipped tools,
which are their only users: what is in them may change in every version. They are imported when they are first asked
for, because `torch_tools` and `rematerialization` load PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from amanda._core import NativeRoutine
from amanda.core.tool import NativeTool
from amanda.toolkit.frameworks import is_torch

if TYPE_CHECKING:
    from amanda import _cupti as cupti
    from amanda import _rematerialization as rematerialization
    from amanda import _tools as tools
    from amanda import _torch_tools as torch_tools
    from amanda.core.op_context import OpContext

__all__ = ["NativeRoutine", "NativeTool", "always", "cupti", "natively", "rematerialization", "tools", "torch_tools"]


def __getattr__(name: str) -> Any:
    if name not in ("cupti", "rematerialization", "tools", "torch_tools"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"amanda._{name}")


def always(capsule: Any) -> NativeRoutine:
    """A routine in C++ that declines no run."""
    return NativeRoutine(capsule, _never)


def _never(*operands: Any, **keywords: Any) -> None:
    raise AssertionError("a routine in C++ has declined a run")


def natively(context: OpContext) -> Any:
    """The module `torch_tools`, if the operator is one that PyTorch runs eagerly; else None."""
    if context.is_symbolic or not is_torch(context):
        return None
    return importlib.import_module("amanda._torch_tools")
