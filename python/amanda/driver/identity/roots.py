"""The frames at which call paths outside models begin: one that `amanda.root` marks, or one that entered an open
scope."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import NamedTuple

from amanda.driver.identity import frames


class _Entered(threading.local):
    def __init__(self) -> None:
        # By entry: the frame's address and code, because the frame itself would keep its locals alive.
        self.frames: dict[int, tuple[int, CodeType]] = {}


_entered = _Entered()


def caller() -> tuple[int, CodeType]:
    """The calling frame's address and code, ignoring frames of this package and of the standard library's context
    managers."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _enters_for_others(frame.f_code.co_filename):
        frame = frame.f_back
    return id(frame), frame.f_code


def enter(entry: int, by: tuple[int, CodeType] | None = None) -> Callable[[], object]:
    """Records the frame that enters a scope, as `caller` returns it. By default, this is the calling frame.

    Returns a function that removes it.
    """
    known = _entered.frames  # at the thread's end, `_entered` can't be reached
    known[entry] = by or caller()
    return lambda: known.pop(entry, None)


def entered_here() -> dict[int, CodeType]:
    """The frames of this thread that entered a scope, by address, with their code. An address alone may be another
    frame's."""
    return dict(_entered.frames.values())


@functools.cache
def _enters_for_others(filename: str) -> bool:
    return frames.is_ours(filename) or _is_contextlib(filename)


def _is_contextlib(filename: str) -> bool:
    return os.path.basename(filename) == "contextlib.py"


# ---- amanda.root ------------------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """The mark of a frame at which call paths begin."""

    place: tuple[object, ...]  # the frame's place in these paths; empty if it counts as any other frame does


class Block(NamedTuple):
    """One entry of `with amanda.root(name)`."""

    name: str
    frame: int  # the address of the frame that it is in
    code: CodeType  # of that frame
    offset: int  # of the instruction that entered it


# A mark is the last constant of a function's code: it costs the function's calls nothing, and goes where the code goes.
_MARK = "amanda.root"

_marked: dict[tuple[int, str], CodeType] = {}  # by the address of the original, while that lives, and the name
_blocks: dict[int, list[Block]] = {}  # entered and not left, by the address of their frame
_listeners: list[Callable[[int, int], object]] = []


def marked(code: CodeType, name: str) -> CodeType:
    """The same code, at which call paths begin; always the same one. ``name``: "" for the function's own."""
    if _name_in(code) is not None:
        code = code.replace(co_consts=code.co_consts[:-1])
    key = (id(code), name)
    if key not in _marked:
        _marked[key] = code.replace(co_consts=(*code.co_consts, (_MARK, name)))
        weakref.finalize(code, _marked.pop, key, None).atexit = False
    return _marked[key]


def _name_in(code: CodeType) -> str | None:
    last = code.co_consts[-1] if code.co_consts else None
    return last[1] if type(last) is tuple and len(last) == 2 and last[0] == _MARK else None


def enter_block(name: str) -> Block:
    """The calling frame is in a block from now on."""
    frame = _user_of_block()
    block = Block(name, id(frame), frame.f_code, frame.f_lasti)
    _blocks.setdefault(block.frame, []).append(block)
    _tell(block.frame)
    return block


def leave_block(entered: list[Block]) -> None:
    """Leaves the last of these that the calling frame is in; if it is in none, the last."""
    here = id(_user_of_block())
    block = next((block for block in reversed(entered) if block.frame == here), entered[-1])
    entered.remove(block)
    blocks = _blocks[block.frame]
    blocks.remove(block)
    if not blocks:
        del _blocks[block.frame]
    _tell(block.frame)


def _user_of_block() -> FrameType:
    """The calling frame, as in `enter`, and outside generators that are context managers themselves."""
    frame = sys._getframe(2)
    while frame.f_back is not None and (_enters_for_others(frame.f_code.co_filename) or _manages_context(frame)):
        frame = frame.f_back
    return frame


def _manages_context(frame: FrameType) -> bool:
    suspends = frame.f_code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR)
    return bool(suspends) and frame.f_back is not None and _is_contextlib(frame.f_back.f_code.co_filename)


def listen(tell: Callable[[int, int], object]) -> None:
    """Calls `tell(frame's address, tag)`, now and at each change; `tag_of` returns the tag."""
    _listeners.append(tell)
    for frame in list(_blocks):
        tell(frame, tag_of(frame))


def _tell(frame: int) -> None:
    for tell in _listeners:
        tell(frame, tag_of(frame))


def blocks() -> Collection[int]:
    """The addresses of the frames that are in a block."""
    return _blocks


def tag_of(frame: int) -> int:
    """A number that distinguishes the innermost block of the frame at this address from others; 0 if it is in no
    block."""
    blocks = _blocks.get(frame)
    return hash((blocks[-1].name, blocks[-1].offset)) % (1 << 63) * 2 + 1 if blocks else 0


def mark_of(frame: FrameType) -> Mark | None:
    """The mark that makes call paths begin at this frame: of a block that it is in, or else of its function. None if
    there is no mark."""
    code = frame.f_code
    for block in reversed(_blocks.get(id(frame), ())):
        if block.code is code:
            return Mark(_place(block.name, code, frame.f_lasti, frames.position_of(code, block.offset)))
    return mark_of_function(code, frame.f_lasti)


def mark_of_function(code: CodeType, offset: int) -> Mark | None:
    """The mark that makes call paths begin at a function of this code, at this instruction. None if there is no
    mark."""
    name = _name_in(code)
    if name is None:
        return None
    return Mark(_place(name, code, offset, (code.co_firstlineno, code.co_firstlineno, 0, 0)) if name else ())


def _place(name: str, code: CodeType, offset: int, start: tuple[int, ...]) -> tuple[object, ...]:
    """A root that has a name counts by it, and by where the call is from the root's start on: the same wherever in a
    file the root is, and in whichever."""
    position = frames.position_of(code, offset)
    if len(position) == 1:  # without columns; a function's start is a line in any case
        return _MARK, name, position[0] - (start[0] if len(start) == 1 else 0)
    line, column = start[0], start[2]
    return _MARK, name, position[0] - line, position[1] - line, position[2] - column, position[3] - column
