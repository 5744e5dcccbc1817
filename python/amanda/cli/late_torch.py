"""A program that imports torch as if nothing had imported it before."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")  # the first one that is set counts, as in PyTorch


@contextlib.contextmanager
def not_imported() -> Iterator[None]:
    """Inside the block `sys.modules` has no torch, until something imports it, and gets the one that there is.

    Many scripts set a number of threads in `os.environ` before they import torch, which reads it then only. Here it is
    set at that import, if the program has changed it: sums are made of as many parts as there are threads.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    imported = list(sys.modules.items())  # at once: another thread may import
    finder = _Finder(torch, {name: module for name, module in imported if _is_of_torch(name)})
    for name in finder.modules:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.put_back()


class _Finder:
    """The first entry of `sys.meta_path`, and a loader, until torch is imported."""

    def __init__(self, torch: ModuleType, modules: dict[str, ModuleType]) -> None:
        self.modules = modules
        self._torch, self._spec = torch, torch.__spec__
        self._threads = _threads()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name != "torch" or self._spec is None:
            return None
        spec = ModuleSpec(name, self, origin=self._spec.origin)  # type: ignore[arg-type]
        spec.submodule_search_locations = self._spec.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._torch

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import has set another one
        self.put_back()
        threads = _threads()
        if threads != self._threads and threads.isdecimal() and int(threads) > 0:
            self._torch.set_num_threads(int(threads))

    def put_back(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            sys.modules.update(self.modules)


def _is_of_torch(name: str) -> bool:
    return name.partition(".")[0] == "torch"


def _threads() -> str:
    return next((os.environ[name] for name in _THREADS if os.environ.get(name)), "")
