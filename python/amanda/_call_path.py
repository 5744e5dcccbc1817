"""The place of an operator call in a Python program: what its id is made of, and what its context says.

The driver asks once per place; from then on it finds the place by the addresses of the frames' code, their instruction
offsets and modules (drivers/torch/python/call_path.cpp).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from amanda import _deaths, _fork, _models, _operands, _port, _roots

_TORCH = os.path.dirname(torch.__file__) + os.sep
_MODULE_FILE = os.path.join(_TORCH, "nn", "modules", "module.py")
_CHECKPOINT_FILE = os.path.join(_TORCH, "utils", "checkpoint.py")
_COMPILER = os.path.join(_TORCH, "_dynamo") + os.sep
_HERE = os.path.dirname(__file__)
_positions: dict[int, dict[int, Any]] = {}  # decoded, by code object (which is watched) and offset
_files: dict[tuple[str, str], dict[str, int]] = {}  # ordinals, by the module's and the file's name, and by path
_MOST_FILES = 256  # of one name: beyond, they are generated
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
    with _lock, _not_traced(), _port.WithoutTorchFunctions():
        _deaths.tell()
        path = call_path(frame)
        place = _hash((name_hash, path.places))
        operands = []
        for position, tensor, counts in tensors:
            name = _operands.operand(tensor, counts, path.modules, place, recomputing)
            if name is not None:
                operands.append((position, name))
        return _hash((place, operands)) or 1, _encodable(_models.names_in(path.modules)), _encodable(path.source)


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
    all loops around a model agree; else the innermost frame that entered a scope, so that scopes further out do not
    matter.
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
        _deaths.watch(code)
        module = _module_run_by(each)
        if module is not None:
            known = _models.name_of(module)
            places.append((known.model, known.name))
            if known.has_state:
                root = len(places)
        elif code.co_filename == _CHECKPOINT_FILE:
            root = len(places)
            break
        elif not _is_machinery(code.co_filename):
            places.append((*_file(each), code.co_qualname, _position(each)))
        if not entered and _roots.is_root(each):
            entered = len(places)
    return Path(tuple(places[: root or entered or None]), modules, _source(frames))


_deaths.listen(objects=lambda key: _positions.pop(key, None))


@functools.cache
def _is_machinery(filename: str) -> bool:
    """Between a module or a compiled function and its code; or ours, such as what stands in for functions of torch."""
    return filename == _MODULE_FILE or filename.startswith(_COMPILER) or os.path.dirname(filename) == _HERE


def _file(frame: FrameType) -> tuple[str, str]:
    """Names a frame's file the same in every process and checkout: by the module, and the name without its folder.

    Files that share both, such as scripts that are run in one process, are numbered in the order in which they are met.
    """
    module = _models.same_in_workers(dict.get(frame.f_globals, "__name__"))
    path = frame.f_code.co_filename
    name = os.path.basename(path)
    paths = _files.setdefault((module, name), {})
    ordinal = paths.setdefault(path, len(paths)) if len(paths) < _MOST_FILES else paths.get(path, _MOST_FILES)
    return module, f"{name}#{ordinal + 1}" if ordinal else name


def _encodable(text: str) -> str:
    """What is no UTF-8, in a file's name, is escaped."""
    return text.encode(errors="backslashreplace").decode()


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module_run_by(frame: FrameType) -> Any:
    if frame.f_code is not _port.RUN_MODULE:
        return None
    module = frame.f_locals.get("self")
    runs = issubclass(type(module), torch.nn.Module) and _port.without_compiler(module) is module
    return module if runs else None


def _source(frames: list[FrameType]) -> str:
    """The innermost line that is neither torch's own nor ours."""
    for frame in frames:
        filename = frame.f_code.co_filename
        if not filename.startswith(_TORCH) and not _is_machinery(filename):
            return f"{filename}:{frame.f_lineno}"
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
