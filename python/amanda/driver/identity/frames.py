"""Python frames, and names of places in them that are the same in every process."""

from __future__ import annotations

import dis
import functools
import hashlib
import os
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from amanda import _core

_PACKAGE = os.path.dirname(_core.__file__) + os.sep
_TOOLS = tuple(os.path.join(_PACKAGE, folder) + os.sep for folder in ("tools", "toolkit", "research"))
_MAIN = "__main__"
_MAIN_OF_A_WORKER = "__mp_main__"  # what multiprocessing calls the main module in processes that it spawns
_MOST_FILES = 256  # per name: more are treated as generated
_CACHE_ENTRY = 0  # the opcode of an instruction's inline cache

hash_bytes = functools.partial(hashlib.blake2b, digest_size=8)  # what ids are made with

_positions: dict[int, dict[int, Any]] = {}  # decoded positions, by the code object's address and the offset in it
_files: dict[tuple[str, str], dict[str, int]] = {}  # ordinals, by the module's and the file's name, and by path


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@functools.cache
def is_ours(filename: str) -> bool:
    """True if the file is Amanda's. The tools' files count as the program's."""
    return filename.startswith(_PACKAGE) and not filename.startswith(_TOOLS)


def place_of(module: str, code: CodeType, offset: int) -> tuple[object, ...]:
    """The module, file, function and source position of the instruction at this offset: of a call that a frame is in.

    Once the code has died, `forget` must be called before this is called again.
    """
    return (*file_of(module, code.co_filename), code.co_qualname, position_of(code, offset))


def module_of(frame: FrameType) -> str:
    """The name of the Python module that the frame's code belongs to."""
    return name_of_module(dict.get(frame.f_globals, "__name__"))


def same_place(original: CodeType, code: CodeType, offset: int) -> int:
    """An instruction of the original code that has the source position of one of `code`, which is made from it.

    Where that has no position, it is as far from the end.
    """
    position = position_of(code, offset)
    if len(position) > 1:
        for index, known in enumerate(original.co_positions()):
            if known == position:
                return index * 2
    after = sum(1 for each in dis.get_instructions(code) if each.offset > offset)
    behind = [each.offset for each in dis.get_instructions(original)]
    return behind[-1 - after] if after < len(behind) else 0


def line_of(code: CodeType, offset: int) -> int:
    """The line of the instruction at this offset; where it has none, as frames have it, the code's first one."""
    return _core.position_at(code, offset)[0] or code.co_firstlineno


def forget(code: int) -> None:
    """The code object at this address has died."""
    _positions.pop(code, None)


def name_of_module(name: Any) -> str:
    """A Python module's `__name__` (which need not be a string), as it is in the process that started this one."""
    known = name if type(name) is str else ""
    return _MAIN if known == _MAIN_OF_A_WORKER else known


def hash_of(value: object) -> int:
    """64 bits of the value's text."""
    return hash_of_text(repr(value))


def hash_of_text(text: str) -> int:
    return int.from_bytes(hash_bytes(text.encode()).digest(), "little")


def encodable(text: str) -> str:
    """Escapes what is not valid UTF-8, which file names may contain."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def file_of(module: str, path: str, name: str = "") -> tuple[str, str]:
    """Names a file the same in every process and checkout: by the module, and the name without its folder; or by `name`.

    Files that share both, such as several scripts run in one process, are numbered in order of appearance.
    """
    name = name or os.path.basename(path)
    paths = _files.setdefault((module, name), {})
    ordinal = paths.setdefault(path, len(paths)) if len(paths) < _MOST_FILES else paths.get(path, _MOST_FILES)
    return module, f"{name}#{ordinal + 1}" if ordinal else name


def position_of(code: CodeType, offset: int) -> tuple[int, ...]:
    """The source position of the instruction at this offset: first and last line, first and last column. Without columns,
    the index of the instruction, not counting inline caches.

    Once the code has died, `forget` must be called before this is called again.
    """
    known = _positions.setdefault(id(code), {})
    if offset not in known:
        position = _core.position_at(code, offset)
        known[offset] = (_instruction(code, offset),) if None in position else position
    found: tuple[int, ...] = known[offset]
    return found


def _instruction(code: CodeType, offset: int) -> int:
    while offset > 0 and code.co_code[offset] == _CACHE_ENTRY:
        offset -= 2
    return offset
