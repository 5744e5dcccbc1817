"""Operators called by autograd nodes are not instrumented, and not caught: there are many.

Operators that a checkpoint recomputes belong to the program, and are caught. While the process has an open scope,
PyTorch's engine and its recomputing functions are replaced by ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from amanda import _torch
from amanda.core import scope
from amanda.drivers.torch import backward_errors, port

_Engine: Any = type(port.engine)


class BackwardCall(NamedTuple):
    """The arguments of a backward pass."""

    tensors: Sequence[Any]  # where it begins, as the loss
    inputs: Sequence[Any]  # whose gradients are asked for; if it is empty, those of all leaves
    accumulates: bool  # or else it returns the gradients, as torch.autograd.grad does
    keeps_graph: bool  # what its nodes have saved
    creates_graph: bool  # the gradients have gradients themselves
    is_nested: bool  # another one runs it, as for a reentrant checkpoint


class BackwardListener(Protocol):
    """The argument of `listen_to_backward`. It is called on the thread of the backward pass, and must not raise."""

    def begin(self, call: BackwardCall) -> None:
        """The pass is about to run."""

    def end(self, call: BackwardCall, error: BaseException | None, gradients: Sequence[Any]) -> None:
        """It has run, and returns these; or has raised this error."""


_listeners: tuple[BackwardListener, ...] = ()  # replaced as a whole: passes of several threads read it


def listen_to_backward(listener: BackwardListener) -> Callable[[], None]:
    """Calls the listener for each backward pass that begins while the process has an open scope. Returns a function that
    ends this."""
    global _listeners
    _listeners = (*_listeners, listener)

    def end() -> None:
        global _listeners
        _listeners = tuple(one for one in _listeners if one is not listener)

    return end


class _QuietEngine(_Engine):  # type: ignore[misc]
    @port.leave_uncompiled
    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        if _listeners:
            return _told(args, kwargs)
        return _run(args, kwargs)


@port.leave_uncompiled
def _run(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if port.compiles_autograd():
        scope.note_unseen("autograd", "compiled autograd")
    were_caught = _torch.catch_operators(False)  # and the engine's threads do as this one does
    try:
        return port.engine.run_backward(*args, **kwargs)
    except RuntimeError as error:
        backward_errors.add_note(error, args[0] if args else ())
        raise
    finally:
        _torch.catch_operators(were_caught)


@port.leave_uncompiled
def _told(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    listeners = _listeners
    call = _begun(listeners, args, kwargs)
    error: BaseException | None = None
    gradients: Sequence[Any] | None = None
    try:
        gradients = _run(args, kwargs)
        return gradients
    except BaseException as raised:
        error = raised
        raise
    finally:
        _ended(listeners, call, error, gradients or ())
        error = None  # or it would refer to itself by its traceback


@port.leave_all_uncompiled
def _begun(listeners: Sequence[BackwardListener], args: Sequence[Any], kwargs: dict[str, Any]) -> BackwardCall:
    call = _call_of(*args, **kwargs)
    for each in listeners:
        each.begin(call)
    return call


@port.leave_all_uncompiled
def _ended(
    listeners: Sequence[BackwardListener], call: BackwardCall, error: BaseException | None, gradients: Sequence[Any]
) -> None:
    for each in reversed(listeners):
        each.end(call, error, gradients)


def _call_of(
    tensors: Sequence[Any],
    grad_tensors: Any = None,
    keep_graph: Any = None,
    create_graph: Any = None,
    inputs: Sequence[Any] = (),
    allow_unreachable: Any = None,
    accumulate_grad: bool = False,
) -> BackwardCall:
    """The parameters are those of the engine."""
    is_nested = port.graph_task_id() >= 0
    return BackwardCall(
        tuple(tensors), tuple(inputs or ()), bool(accumulate_grad), bool(keep_graph), bool(create_graph), is_nested
    )


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
