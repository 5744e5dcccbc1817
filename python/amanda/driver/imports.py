"""Notices when a program imports a module, so that a driver is loaded with its framework and never before.

`wrapt.when_imported` is no substitute. It calls back at once where the import is under way, or where something else
stands for the module in `sys.modules`. Its hook never leaves `sys.meta_path`, and `find_spec` gives loaders of another
class.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence, Set
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_awaited: dict[str, Callable[[], object]] = {}  # by the module's name


def when_imported(module: str, callback: Callable[[], object]) -> None:
    """Calls `callback()` once, when a top-level module has been imported: now, if it has been.

    At an import it is called by the `import` statement, after the module's own code.
    """
    _awaited[module] = callback
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    tell()


def awaited() -> Set[str]:
    """The modules whose import is awaited."""
    return _awaited.keys()


def tell() -> None:
    """Calls the callbacks of the modules that are imported. This is for modules whose import was not noticed: the
    import was under way when the callback was registered, its loader cannot be changed, or somebody has replaced
    `sys.meta_path`."""
    for module in list(_awaited):
        if _is_imported(sys.modules.get(module)):
            _told(module)


def _is_imported(module: ModuleType | None) -> bool:
    """False if the module's code still runs, or if it only stands for a module that is not installed."""
    spec = getattr(module, "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def _told(module: str) -> None:
    callback = _awaited.pop(module, None)
    if not _awaited and _Finder in sys.meta_path:
        sys.meta_path.remove(_Finder)
    if callback is not None:
        callback()


class _Here(threading.local):
    searching = False


_here = _Here()


class _Finder:
    """The first entry of `sys.meta_path`, as long as a module is awaited. The others find the modules."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _awaited or _here.searching:
            return None
        _here.searching = True
        try:
            spec = _found_by_others(name, path, target)
        finally:
            _here.searching = False
        if spec is not None and spec.loader is not None:
            _tell_after(spec.loader, name)
        return spec


def _found_by_others(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, path, target) if find is not None else None
        if spec is not None:
            return spec
    return None


def _tell_after(loader: Any, name: str) -> None:
    """Changes one loader, which is made for one import. Its class stays, since libraries look at that."""
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        execute(module)
        _told(name)

    try:
        loader.exec_module = exec_module
    except (AttributeError, TypeError):  # `tell` will find the module
        return
