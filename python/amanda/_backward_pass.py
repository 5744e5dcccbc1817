"""Backward passes: what a node calls is no operator of the program's, and there are many. None of them is caught.

But what a checkpoint recomputes is the program's. While a scope is open, somewhere, ours stand in front of PyTorch's
engine, and of what recomputes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from amanda import _port, _torch

_Engine: Any = type(_port.engine)


class _QuietEngine(_Engine):  # type: ignore[misc]
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        were_caught = _torch.catch_operators(False)  # and the engine's threads do as this one does
        try:
            return _port.engine.run_backward(*args, **kwargs)
        finally:
            _torch.catch_operators(were_caught)


def _caught(recompute: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(recompute)
    def run(*args: Any, **kwargs: Any) -> Any:
        were_caught = _torch.catch_operators(True)
        try:
            return recompute(*args, **kwargs)
        finally:
            _torch.catch_operators(were_caught)

    return run


_checkpoint: Any = torch.utils.checkpoint
_backward = _checkpoint.CheckpointFunction.backward
_quiet_engine = _QuietEngine()
_caught_backward, _caught_recompute = _caught(_backward), _caught(_port.recompute)


def watch() -> None:
    _port.Variable._execution_engine = _quiet_engine
    _checkpoint.CheckpointFunction.backward = staticmethod(_caught_backward)
    _checkpoint._run_fn_with_dynamo_disabled = _caught_recompute


def leave_alone() -> None:
    if _port.Variable._execution_engine is _quiet_engine:
        _port.Variable._execution_engine = _port.engine
    if _checkpoint.CheckpointFunction.backward is _caught_backward:
        _checkpoint.CheckpointFunction.backward = staticmethod(_backward)
    if _checkpoint._run_fn_with_dynamo_disabled is _caught_recompute:
        _checkpoint._run_fn_with_dynamo_disabled = _port.recompute
