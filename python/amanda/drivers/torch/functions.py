"""Shows torch.autograd.Function to tools: the dispatcher does not call it, but it has a backward node.

`Function.apply`, however it is obtained, calls the `apply` of a base class. While the process has an open scope, that is
replaced by ours.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from amanda import _torch
from amanda.drivers.torch import port

_Base: Any = port.FunctionBase


@port.leave_uncompiled
@functools.wraps(_Base.apply)
def _apply(cls: type[Any], /, *args: Any, **kwargs: Any) -> Any:
    run = super(_Base, cls).apply
    if torch.compiler.is_compiling():
        return run(*args, **kwargs)
    window = _torch.NodeWindow()
    results = run(*args, **kwargs)
    name = cls.__name__
    if not issubclass(cls, torch.autograd.Function):  # torch.func creates its own classes for its levels
        name = name.removesuffix("Generated").removeprefix("Vmapped")
    _torch.bind_function(name, window, (*args, *kwargs.values()), results)  # inputs of the node in this order
    return results


_patched = classmethod(_apply)


def patch() -> None:
    _Base.apply = _patched


def unpatch() -> None:
    if _Base.__dict__.get("apply") is _patched:
        del _Base.apply
