"""The place of an operator call in a Python program, from which its id and its context's texts are computed.

Called once per place; afterwards the driver finds the place by the addresses of the frames' code, their instruction
offsets and modules.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from amanda import _fork
from amanda.drivers.torch import lifetimes, models, operands, port
from amanda.identity import frames, roots

_TORCH = os.path.dirname(torch.__file__) + os.sep
_MODULE_FILE = os.path.join(_TORCH, "nn", "modules", "module.py")
_CHECKPOINT_FILE = os.path.join(_TORCH, "utils", "checkpoint.py")
_COMPILER = os.path.join(_TORCH, "_dynamo") + os.sep
_lock = _fork.rlock()  # two threads that run a model for the first time must agree on its name


class Path(NamedTuple):
    """From an operator outwards to its root."""

    places: tuple[object, ...]
    modules: list[Any]  # the running modules, innermost first
    source: str


def resolve(
    frame: FrameType | None, name_hash: int, tensors: Sequence[tuple[int, Any, bool]], recomputing: bool
) -> tuple[int, str, str]:
    """The id, module name and source line of the operator that `frame` calls.

    Arguments: frame: the innermost Python frame. name_hash: of the operator's name. tensors: for each tensor operand:
        (position, tensor, does it count as a parameter by its type). recomputing: is a backward operator recomputing a
        checkpointed region?
    """
    with _lock, _not_traced(), port.WithoutTorchFunctions():
        lifetimes.tell()
        path = call_path(frame)
        place = frames.hash_of((name_hash, path.places))
        named = []
        for position, tensor, counts in tensors:
            name = operands.operand(tensor, counts, path.modules, place, recomputing)
            if name is not None:
                named.append((position, name))
        module_path = frames.encodable(models.names_in(path.modules))
        return frames.hash_of((place, named)) or 1, module_path, frames.encodable(path.source)


@contextlib.contextmanager
def _not_traced() -> Iterator[None]:
    """Under torch.jit.trace sizes are tensors: reading them would be recorded, and seen by tools."""
    state = port.get_tracing_state()
    if state is None:
        yield
        return
    port.set_tracing_state(None)
    try:
        yield
    finally:
        port.set_tracing_state(state)


def call_path(frame: FrameType | None) -> Path:
    """The frames from the operator to the root, each as its function and the source position of the call in it.

    A frame that runs a module is represented by the module's name in its model. The root is a `torch.utils.checkpoint`
    boundary, so that a recomputation has the ids of the first run; otherwise the outermost module that has state, so
    that ids do not depend on the loop around a model; otherwise the innermost frame that entered a scope, so that ids
    do not depend on frames further out.
    """
    stack = list(frames.outwards(frame))
    modules = [module for module in map(_module_run_by, stack) if module is not None]
    lent = any(each.f_code is port.FUNCTIONAL_CALL for each in stack)
    for module in reversed(modules):
        models.register_model(module)
        if not lent:
            operands.register_buffers(module)
    places: list[object] = []
    root = entered = 0
    for each in stack:
        code = each.f_code
        lifetimes.watch(code)
        module = _module_run_by(each)
        if module is not None:
            known = models.name_of(module)
            places.append((known.model, known.name))
            if known.has_state:
                root = len(places)
        elif code.co_filename == _CHECKPOINT_FILE:
            root = len(places)
            break
        elif not _is_machinery(code.co_filename):
            places.append(frames.place_of(each))
        if not entered and roots.is_root(each):
            entered = len(places)
    return Path(tuple(places[: root or entered or None]), modules, _source(stack))


lifetimes.objects.listen(frames.forget)


@functools.cache
def _is_machinery(filename: str) -> bool:
    """Is it a frame between a module or a compiled function and its code, or one of Amanda's, such as its replacements
    of torch's functions?"""
    return filename == _MODULE_FILE or filename.startswith(_COMPILER) or frames.is_ours(filename)


def _module_run_by(frame: FrameType) -> Any:
    if frame.f_code is not port.RUN_MODULE:
        return None
    module = frame.f_locals.get("self")
    runs = issubclass(type(module), torch.nn.Module) and port.without_compiler(module) is module
    return module if runs else None


def _source(stack: list[FrameType]) -> str:
    """The innermost line outside torch and Amanda."""
    for frame in stack:
        filename = frame.f_code.co_filename
        if not filename.startswith(_TORCH) and not _is_machinery(filename):
            return f"{filename}:{frame.f_lineno}"
    return ""
