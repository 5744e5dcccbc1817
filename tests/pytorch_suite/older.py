"""Names that tests of an older PyTorch import and the installed one has no more: enough for their files to load."""

import sys
import types
import unittest
from typing import Any


def gone(*args: Any, **kwargs: Any) -> Any:
    raise unittest.SkipTest("the installed PyTorch does not have this any more")


def unchanged(*args: Any, **kwargs: Any) -> Any:
    """A decorator with arguments, that does nothing."""
    return lambda test: test


def supply() -> None:
    """Puts in what is missing, where it is missing."""
    from torch.nn.attention import flex_attention
    from torch.testing._internal import common_cuda, common_mkldnn, common_nn

    modern_tests = getattr(common_nn, "get_new_module_tests", list)
    missing: list[tuple[Any, str, Any]] = [
        (common_cuda, "tf32_is_not_fp32", lambda: False),
        (common_mkldnn, "bf32_on_and_off", unchanged),
        (common_nn, "new_module_tests", modern_tests()),
        (flex_attention, "create_nested_block_mask", gone),
    ]
    for module, name, value in missing:
        if not hasattr(module, name):
            setattr(module, name, value)
    functional = types.ModuleType("torch._custom_op.functional")
    functional.register_functional_op = gone  # type: ignore[attr-defined]
    try:
        import torch._custom_op.functional  # noqa: F401
    except ImportError:
        sys.modules[functional.__name__] = functional
