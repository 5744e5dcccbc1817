"""Names of a package that are imported when they are first asked for, because their modules import a framework, or
because few programs use them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from amanda.core import moved
from amanda.core.near_names import did_you_mean

__all__ = ["imports"]


def imports(package: str, **names: tuple[str, ...]) -> Callable[[str], Any]:
    """The package's `__getattr__`: `names` are those of each module, and the package's modules are imported, too. For other
    names it raises an AttributeError, which has the new place of a name that has moved, or a name that is similar."""
    modules = {name: module for module, of_module in names.items() for name in of_module}

    def get(name: str) -> Any:
        if moves := moved.message(f"{package}.{name}"):
            raise AttributeError(moves, name=name)
        if name in modules:
            value = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        meant = did_you_mean(name, [*modules, *names], f"{package}.{{}}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}{meant}", name=name)

    return get
