"""Native: where tools in Python work in C++, and how."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amanda.op_context import OpContext


def natively(context: OpContext) -> Any:
    """The module `_torch_tools`, if the operator is one that PyTorch runs eagerly; else None.

    It is not imported before: it loads PyTorch.
    """
    if context.is_symbolic or not context.namespace.startswith("pytorch/"):
        return None
    return importlib.import_module("amanda._torch_tools")
