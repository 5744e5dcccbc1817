"""The Python call path of an operator in words. The driver asks once per path; see python/src/torch/call_path.cpp."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import weakref
from types import CodeType, FrameType
from typing import Any

# Modules seen, by their names in the outermost module that was running when they were met first.
_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def describe(frame: FrameType | None) -> tuple[int, str, str]:
    """Of the frame that calls an operator: a hash of the path, the running module's name, and the source line.

    The path is the list of frames from the operator to its root: each by its function's qualified name and the position
    of the call in the source; a frame that runs a module by that module's name in its model. The root is a
    `torch.utils.checkpoint` boundary, so that recomputation has the path of the first run, else the outermost module,
    else the outermost frame.
    """
    frames = list(_outwards(frame))
    modules = [module for module in map(_module_run_by, frames) if module is not None]
    if modules:
        _learn_names(modules[-1])
    path: list[object] = []
    rooted: list[object] = []  # up to the outermost module
    for frame in frames:
        module = _module_run_by(frame)
        if module is not None:
            path.append(_names.get(module, type(module).__qualname__))
            rooted = list(path)
        elif frame.f_code.co_filename == _checkpoint_file():
            rooted = list(path)
            break
        elif frame.f_code.co_filename != _module_file():  # the machinery between a module and its forward()
            path.append((_base(frame.f_code), frame.f_code.co_qualname, _position(frame)))
    digest = hashlib.blake2b(repr(rooted or path).encode(), digest_size=8).digest()
    module_path = _names.get(modules[0], "") if modules else ""
    return int.from_bytes(digest, "little"), module_path, _source(frames)


def _outwards(frame: FrameType | None) -> Any:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module_run_by(frame: FrameType) -> Any:
    if frame.f_code is not _run_module_code():
        return None
    import torch

    module = frame.f_locals.get("self")  # tracers call the function with stand-ins
    return module if isinstance(module, torch.nn.Module) else None


def _learn_names(outermost: Any) -> None:
    if outermost in _names and _names[outermost]:
        return  # known as a part of its model
    for name, module in outermost.named_modules():
        _names[module] = name


def _source(frames: list[FrameType]) -> str:
    """The innermost line that is not torch's own."""
    for frame in frames:
        name = frame.f_code.co_filename
        if not name.startswith(_torch_directory()):
            return f"{name}:{frame.f_lineno}"
    return ""


def _base(code: CodeType) -> str:
    return os.path.basename(code.co_filename)


def _position(frame: FrameType) -> object:
    """Where in the source the frame calls: not the instruction's offset, which moves when the interpreter specialises."""
    position = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    return position if position and position[0] is not None else frame.f_lasti


@functools.cache  # from when the driver was loaded: tracers put other functions in its place
def _run_module_code() -> CodeType:
    import torch

    return torch.nn.Module.__call__.__code__


@functools.cache
def _torch_directory() -> str:
    import torch

    return os.path.dirname(torch.__file__) + os.sep


@functools.cache
def _module_file() -> str:
    return os.path.join(_torch_directory(), "nn", "modules", "module.py")


@functools.cache
def _checkpoint_file() -> str:
    return os.path.join(_torch_directory(), "utils", "checkpoint.py")
