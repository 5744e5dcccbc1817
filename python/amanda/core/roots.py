"""root: where the call paths of operators outside models begin."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar, overload

from amanda import _core
from amanda.driver.identity import roots

F = TypeVar("F", bound=Callable[..., Any])


class Root:
    """A root that has a name: a context manager and a decorator. Created by `root`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._blocks: list[roots.Block] = []

    def __repr__(self) -> str:
        return f"<amanda.root {self.name!r}>"

    def __enter__(self) -> Root:
        self._blocks.append(roots.enter_block(self.name))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if not self._blocks:
            raise _core.Error(f"[root] {self!r} was not entered, or left already")
        roots.leave_block(self._blocks)

    def __call__(self, function: F) -> F:
        """Decorates a function: it is the root, under this name."""
        marked: F = _marked(function, self.name)
        return marked


@overload
def root(function_or_name: str) -> Root: ...
@overload
def root(function_or_name: F) -> F: ...
def root(function_or_name: Any) -> Any:
    """Makes the ids of operators outside models independent of who calls a function::

        @amanda.root
        def loss(prediction, target):
            return ((prediction - target) ** 2).mean()

        with amanda.root("step"):
            optimizer.step()

    The call path in `OpContext.op_id` begins at the innermost root. A decorated function counts by its name and file. A
    root that has a name counts by this name alone. Calls in it count by their position relative to the root's first
    line. Blocks with the same name and the same lines therefore have the same ids, wherever they are. Inside a module
    that has state, the path begins at that module, with or without roots.

    As a decorator it returns a copy of the function, whose calls cost no more. Methods, generators and coroutine functions
    can be roots, too. A root covers what its function or block calls on the same thread: not the threads and tasks that
    it starts, and not the code that runs while a generator or coroutine is suspended.

    Raises:
        TypeError: neither a Python function nor a name.
        ValueError: the name is empty.
    """
    if not isinstance(function_or_name, str):
        return _marked(function_or_name, "")
    if not function_or_name:
        raise ValueError('[root] a root needs a name that is not empty, as in `with amanda.root("step"):`')
    return Root(function_or_name)


def _marked(function: Any, name: str) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_marked(function.__func__, name))
    if isinstance(function, MethodType):
        return MethodType(_marked(function.__func__, name), function.__self__)
    if not isinstance(function, FunctionType):
        raise TypeError(
            f"[root] amanda.root decorates Python functions, or takes a name, got {function!r}; "
            'write `with amanda.root("name"):` around the call'
        )
    code = roots.marked(function.__code__, name)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    for attribute in functools.WRAPPER_ASSIGNMENTS:
        if hasattr(function, attribute):
            setattr(made, attribute, getattr(function, attribute))
    made.__dict__.update(function.__dict__)
    return made
