"""Python frames, and names of places in them that are the same in every process."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_TOOLS = os.path.join(_PACKAGE, "tools") + os.sep
_MAIN = "__main__"
_MAIN_OF_A_WORKER = "__mp_main__"  # what multiprocessing calls the main module in processes that it spawns
_MOST_FILES = 256  # per name: more are treated as generated
_CACHE_ENTRY = 0  # the opcode of an instruction's inline cache

_positions: dict[int, dict[int, Any]] = {}  # decoded positions, by the code object's address and the offset in it
_files: dict[tuple[str, str], dict[str, int]] = {}  # ordinals, by the module's and the file's name, and by path


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@functools.cache
def is_ours(filename: str) -> bool:
    """Is the file Amanda's? The tools' files count as the program's."""
    return filename.startswith(_PACKAGE) and not filename.startswith(_TOOLS)


def place_of(frame: FrameType) -> tuple[object, ...]:
    """The module, file, function and source position of the call that the frame is in.

    Once the frame's code has died, `forget` must be called before this is called again.
    """
    return (*_file(frame), frame.f_code.co_qualname, _position(frame))


def forget(code: int) -> None:
    """The code object at this address has died."""
    _positions.pop(code, None)


def name_of_module(name: Any) -> str:
    """A Python module's `__name__` (which need not be a string), as it is in the process that started this one."""
    known = name if type(name) is str else ""
    return _MAIN if known == _MAIN_OF_A_WORKER else known


def hash_of(value: object) -> int:
    """64 bits of the value's text."""
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "little")


def encodable(text: str) -> str:
    """Escapes what is not valid UTF-8, which file names may contain."""
    return text.encode(errors="backslashreplace").decode()


def _file(frame: FrameType) -> tuple[str, str]:
    """Names a frame's file the same in every process and checkout: by the module, and the name without its folder.

    Files that share both, such as several scripts run in one process, are numbered in order of appearance.
    """
    module = name_of_module(dict.get(frame.f_globals, "__name__"))
    path = frame.f_code.co_filename
    name = os.path.basename(path)
    paths = _files.setdefault((module, name), {})
    ordinal = paths.setdefault(path, len(paths)) if len(paths) < _MOST_FILES else paths.get(path, _MOST_FILES)
    return module, f"{name}#{ordinal + 1}" if ordinal else name


def _position(frame: FrameType) -> tuple[object, ...]:
    """The source position of the frame's call. Without columns, the index of the instruction, not counting inline
    caches."""
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
