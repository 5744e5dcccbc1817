"""The place of an operator call in a Python program: what its id is made of, and what its context says.

The driver asks once per place; from then on it finds the place by the addresses of the frames' code, their instruction
offsets and modules (python/src/torch/call_path.cpp).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from amanda import _deaths, _fork, _models, _operands, _port, _roots, _torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_MODULE_FILE = os.path.join(_TORCH, "nn", "modules", "module.py")
_CHECKPOINT_FILE = os.path.join(_TORCH, "utils", "checkpoint.py")
_positions: dict[int, dict[int, Any]] = {}  # decoded, by code object (which is watched) and offset
_lock = _fork.rlock()  # two threads that first run a model must agree on its name
_CACHE_ENTRY = 0  # the opcode of an instruction's inline cache


class Path(NamedTuple):
    """From an operator outwards to its root."""

    places: tuple[object, ...]
    modules: list[Any]  # that run, innermost first
    source: str


def resolve(
    frame: FrameType | None, name_hash: int, tensors: Sequence[tuple[int, Any, bool]], recomputing: bool
) -> tuple[int, str, str]:
    """Of the operator that `frame` calls: its id, the running module's name and the source line.

    Arguments:
        frame: the innermost Python frame.
        name_hash: of the operator's name.
        tensors: the (position, tensor, does it count as a parameter by itself) of each among its operands.
        recomputing: does a backward operator run, which recomputes a checkpointed region?
    """
    with _lock, _not_traced():
        path = call_path(frame)
        place = _hash((name_hash, path.places))
        operands = []
        for position, tensor, counts in tensors:
            name = _operands.operand(tensor, counts, path.modules, place, recomputing)
            if name is not None:
                operands.append((position, name))
        return _hash((place, operands)) or 1, _models.names_in(path.modules), path.source


@contextlib.contextmanager
def _not_traced() -> Iterator[None]:
    """Under torch.jit.trace, sizes are tensors, and what is asked of them is recorded, and seen."""
    state = _port.get_tracing_state()
    if state is None:
        yield
        return
    _port.set_tracing_state(None)
    try:
        yield
    finally:
        _port.set_tracing_state(state)


def call_path(frame: FrameType | None) -> Path:
    """The frames from the operator to the root, each by its function and the source position of the call in it.

    A frame that runs a module counts as the module's name in its model. The root is a `torch.utils.checkpoint`
    boundary, so that a recomputation has the ids of the first run; else the outermost module that has state, so that
    all loops around a model agree; else the frame that entered the outermost scope.
    """
    frames = list(_outwards(frame))
    modules = [module for module in map(_module_run_by, frames) if module is not None]
    lent = any(each.f_code is _port.FUNCTIONAL_CALL for each in frames)
    for module in reversed(modules):
        _models.learn(module)
        if not lent:
            _operands.meet(module)
    places: list[object] = []
    root = entered = 0
    for each in frames:
        code = each.f_code
        _deaths.watch(code, _forget_code)
        module = _module_run_by(each)
        if module is not None:
            known = _models.name_of(module)
            places.append((known.model, known.name))
            if known.has_state:
                root = len(places)
        elif code.co_filename == _CHECKPOINT_FILE:
            root = len(places)
            break
        elif code.co_filename != _MODULE_FILE:  # the machinery between a module and its forward()
            places.append((os.path.basename(code.co_filename), code.co_qualname, _position(each)))
        if _roots.is_root(each):
            entered = len(places)
    return Path(tuple(places[: root or entered or None]), modules, _source(frames))


def _forget_code(key: int) -> None:
    _positions.pop(key, None)
    _torch.start_new_epoch()


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module_run_by(frame: FrameType) -> Any:
    if frame.f_code is not _port.RUN_MODULE:
        return None
    module = frame.f_locals.get("self")
    return module if isinstance(module, torch.nn.Module) else None


def _source(frames: list[FrameType]) -> str:
    """The innermost line that is not torch's own."""
    for frame in frames:
        if not frame.f_code.co_filename.startswith(_TORCH):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return ""


def _position(frame: FrameType) -> tuple[object, ...]:
    """Where in the source the frame calls. Without columns, the index of the instruction, its inline cache left out."""
    known = _positions.setdefault(id(frame.f_code), {})
    if frame.f_lasti not in known:
        position = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
        complete = position is not None and None not in position
        known[frame.f_lasti] = position if complete else (_instruction(frame.f_code, frame.f_lasti),)
    found: tuple[object, ...] = known[frame.f_lasti]
    return found


def _instruction(code: CodeType, offset: int) -> int:
    while offset > 0 and code.co_code[offset] == _CACHE_ENTRY:
        offset -= 2
    return offset


def _hash(value: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "little")
