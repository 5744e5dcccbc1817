"""Names that tests of an older PyTorch import and the installed one has no more: enough for their files to load."""

import importlib
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any


def gone(*args: Any, **kwargs: Any) -> Any:
    raise unittest.SkipTest("the installed PyTorch does not have this any more")


def unchanged(*args: Any, **kwargs: Any) -> Any:
    """A decorator with arguments, that does nothing."""
    return lambda test: test


# Where it was, its name, and what makes it.
MISSING: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("torch.testing._internal.common_cuda", "tf32_is_not_fp32", lambda module: lambda: False),
    ("torch.testing._internal.common_mkldnn", "bf32_on_and_off", lambda module: unchanged),
    ("torch.testing._internal.common_nn", "new_module_tests", lambda module: module.get_new_module_tests()),
    ("torch.nn.attention.flex_attention", "create_nested_block_mask", lambda module: gone),
    ("torch._custom_op.functional", "register_functional_op", lambda module: gone),
]


def supply(text: str) -> None:
    """Puts in what the text of a test file names and this PyTorch does not have."""
    for module_name, name, make in MISSING:
        if name not in text:
            continue
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            module = sys.modules[module_name] = types.ModuleType(module_name)
        if not hasattr(module, name):
            setattr(module, name, make(module))
