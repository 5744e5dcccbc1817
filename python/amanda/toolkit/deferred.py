"""Names of a package that are imported when they are first asked for, because their modules import a framework."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from amanda.core import moved

__all__ = ["imports"]


def imports(package: str, **names: tuple[str, ...]) -> Callable[[str], Any]:
    """The package's `__getattr__`: `names` are those of each module. For other names it raises an AttributeError, which has
    the new place of a name that has moved."""
    modules = {name: module for module, of_module in names.items() for name in of_module}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(moved.message(f"{package}.{name}") or f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
