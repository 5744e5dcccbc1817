"""Shows torch.autograd.Function to tools: the dispatcher does not call it, but it has a backward node.

`Function.apply`, however it is obtained, calls the `apply` of a base class. While the process has an open scope, that is
replaced by ours. From PyTorch 2.14 on, it does not: `Function.apply` itself is replaced, too, and what the program obtained
before the scope is not ours.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from amanda import _torch
from amanda.driver.identity import frames
from amanda.drivers.torch import port
from amanda.drivers.torch.versions import is_at_least

_Base: Any = port.FunctionBase
_own: Any = vars(torch.autograd.Function)["apply"] if is_at_least("2.14", torch.__version__) else None


@port.leave_uncompiled
@functools.wraps(_Base.apply)
def _apply(cls: type[Any], /, *args: Any, **kwargs: Any) -> Any:
    run = super(_Base, cls).apply
    if torch.compiler.is_compiling() or (
        _own and issubclass(cls, torch.autograd.Function) and port.functorch_is_active()
    ):
        return run(*args, **kwargs)
    window = _torch.NodeWindow()
    results = run(*args, **kwargs)
    name = cls.__name__
    if not issubclass(cls, torch.autograd.Function):  # torch.func creates its own classes for its levels
        name = name.removesuffix("Generated").removeprefix("Vmapped")
    _torch.bind_function(name, window, (*args, *kwargs.values()), results)  # inputs of the node in this order
    return results


_patched = classmethod(_apply)
_CODE: Any = getattr(_apply, "__code__")  # noqa: B009 -- functools.wraps hides that it is a function


def running_function() -> str:
    """The name of the innermost autograd.Function that this thread applies, in whose `forward` nothing is recorded by
    autograd; "" if there is none. Inside a backward pass, only one that the pass applies counts."""
    for frame in frames.outwards(sys._getframe(1)):
        if frame.f_code is port.RUN_BACKWARD:
            return ""
        if frame.f_code is _CODE:
            return str(frame.f_locals["cls"].__name__)
    return ""


def patch() -> None:
    _Base.apply = _patched
    if _own:
        torch.autograd.Function.apply = _patched


def unpatch() -> None:
    if _Base.__dict__.get("apply") is _patched:
        del _Base.apply
    if _own and torch.autograd.Function.__dict__["apply"] is _patched:
        torch.autograd.Function.apply = _own
