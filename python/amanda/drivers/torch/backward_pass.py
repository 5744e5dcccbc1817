"""Operators called by autograd nodes are not instrumented, and not caught: there are many.

Operators that a checkpoint recomputes belong to the program, and are caught. While the process has an open scope,
PyTorch's engine and its recomputing functions are replaced by ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from amanda import _torch
from amanda.drivers.torch import backward_errors, port

_Engine: Any = type(port.engine)


class _QuietEngine(_Engine):  # type: ignore[misc]
    @port.leave_uncompiled
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        were_caught = _torch.catch_operators(False)  # and the engine's threads do as this one does
        try:
            return port.engine.run_backward(*args, **kwargs)
        except RuntimeError as error:
            backward_errors.add_note(error, args[0] if args else ())
            raise
        finally:
            _torch.catch_operators(were_caught)


def _caught(recompute: Callable[..., Any]) -> Callable[..., Any]:
    @port.leave_uncompiled
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
_caught_backward, _caught_recompute = _caught(_backward), _caught(port.recompute)


def patch() -> None:
    port.Variable._execution_engine = _quiet_engine
    _checkpoint.CheckpointFunction.backward = staticmethod(_caught_backward)
    _checkpoint._run_fn_with_dynamo_disabled = _caught_recompute


def unpatch() -> None:
    if port.Variable._execution_engine is _quiet_engine:
        port.Variable._execution_engine = port.engine
    if _checkpoint.CheckpointFunction.backward is _caught_backward:
        _checkpoint.CheckpointFunction.backward = staticmethod(_backward)
    if _checkpoint._run_fn_with_dynamo_disabled is _caught_recompute:
        _checkpoint._run_fn_with_dynamo_disabled = port.recompute
