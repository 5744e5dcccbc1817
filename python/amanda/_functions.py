"""torch.autograd.Function: no operator of the dispatcher's, but one all the same, for the sake of its backward node.

`Function.apply`, however it is come by, calls the `apply` of a base class. While a scope is open, somewhere, ours stands
in front of that.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from amanda import _port, _torch

_Base: Any = _port.FunctionBase


@functools.wraps(_Base.apply)
def _apply(cls: type[Any], /, *args: Any, **kwargs: Any) -> Any:
    run = super(_Base, cls).apply
    if torch.compiler.is_compiling():
        return run(*args, **kwargs)
    window = _torch.NodeWindow()
    results = run(*args, **kwargs)
    name = cls.__name__
    if not issubclass(cls, torch.autograd.Function):  # torch.func makes classes of its own for its levels
        name = name.removesuffix("Generated").removeprefix("Vmapped")
    _torch.bind_function(name, window, (*args, *kwargs.values()), results)  # inputs of the node in this order
    return results


_watching = classmethod(_apply)


def watch() -> None:
    _Base.apply = _watching


def leave_alone() -> None:
    if _Base.__dict__.get("apply") is _watching:
        del _Base.apply
