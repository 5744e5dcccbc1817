"""torch.autograd.Function: no operator of the dispatcher's, but one all the same, for the sake of its backward node.

Only while a scope is open, somewhere, is its `apply` ours.
"""

from __future__ import annotations

from typing import Any

import torch

from amanda import _torch

_vanilla = torch.autograd.Function.__dict__["apply"]


def _apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():
        return _vanilla.__get__(None, cls)(*args, **kwargs)
    window = _torch.NodeWindow()
    results = _vanilla.__get__(None, cls)(*args, **kwargs)
    _torch.bind_function(cls.__name__, window, args, results)
    return results


_watching = classmethod(_apply)


def watch() -> None:
    torch.autograd.Function.apply = _watching  # type: ignore[assignment,method-assign]


def leave_alone() -> None:
    if torch.autograd.Function.__dict__["apply"] is _watching:  # or somebody else has put theirs
        torch.autograd.Function.apply = _vanilla  # type: ignore[method-assign]
