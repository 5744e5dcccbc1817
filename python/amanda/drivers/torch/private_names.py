"""Names of torch that it does not document. They are looked up together, before a program needs one."""

from __future__ import annotations

import importlib
import inspect
import operator
from collections.abc import Iterator
from types import CodeType
from typing import Any


class PrivateNames:
    """Looks names up, and remembers those that are missing.

    Args:
        purpose: what needs them: "which this version of amanda relies on; install ..."
    """

    def __init__(self, label: str, purpose: str) -> None:
        self._label = label
        self._purpose = purpose
        self._missing: list[str] = []
        self.found: set[str] = set()  #: by their full names

    def get(self, module: str, name: str) -> Any:
        """The value of ``module.name``; the module is imported. None if there is none: see `check`."""
        try:
            return self._of(module, name)
        except (ImportError, AttributeError):
            self._missing.append(f"{module}.{name}")
            return None  # all missing names are reported together

    def first(self, *places: tuple[str, str]) -> Any:
        """The value at the first of these places, as for `get`, that there is. None if there is none."""
        for module, name in places[:-1]:
            try:
                return self._of(module, name)
            except (ImportError, AttributeError):
                pass
        return self.get(*places[-1])

    def find(self, module: str, name: str) -> Any:
        """As `get`, for what only some versions have: None if this one has not."""
        try:
            return self._of(module, name)
        except (ImportError, AttributeError):
            return None

    def attributes(self, module: str, cls: str, *names: str) -> None:
        """Objects of this class must have these attributes: the class has them, or its `__init__` sets them."""
        owner = self.get(module, cls)
        if owner is not None:
            self._require(f"{module}.{cls}", names, set(_attributes_of(owner)))

    def own(self, module: str, cls: str, name: str) -> Any:
        """The class, which must define this name itself: it does not suffice that a base has it."""
        owner = self.get(module, cls)
        if owner is not None:
            self._require(f"{module}.{cls}", (name,), set(vars(owner)))
        return owner

    def variables(self, module: str, function: str, *names: str) -> None:
        """This function must have these local variables, or functions, or variables of such a function."""
        code = self.get(module, f"{function}.__code__")
        if code is not None:
            self._require(f"{module}.{function}.<locals>", names, set(_variables_of(code)))

    def check(self) -> None:
        """Raises an ImportError that names all that is missing."""
        if not self._missing:
            return
        missing, self._missing = ", ".join(self._missing), []
        version = importlib.import_module("torch").__version__
        raise ImportError(f"[{self._label}] torch {version} has no {missing}, {self._purpose}")

    def _of(self, module: str, name: str) -> Any:
        value = operator.attrgetter(name)(importlib.import_module(module))
        self.found.add(f"{module}.{name}")
        return value

    def _require(self, owner: str, names: tuple[str, ...], known: set[str]) -> None:
        self.found.update(f"{owner}.{name}" for name in names)
        self._missing.extend(f"{owner}.{name}" for name in names if name not in known)


def _attributes_of(cls: type) -> Iterator[str]:
    yield from dir(cls)
    for base in cls.__mro__:
        yield from inspect.get_annotations(base)
        init: Any = base.__dict__.get("__init__")
        if hasattr(init, "__code__"):
            yield from init.__code__.co_names


def _variables_of(code: CodeType) -> Iterator[str]:
    yield from (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner.co_name
            yield from _variables_of(inner)
