"""The roots of a search: variables of modules, and of functions that run. The program's own come first."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Container, Iterator
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from amanda.toolkit.frames import is_library, outwards, short_line

from .kinds import RUN_MODULE
from .names import Name, place_of


class Root(NamedTuple):
    thing: Any
    name: Name


def of_program() -> list[Root]:
    """The variables of the program's own modules, and of its functions that run; the outermost functions first."""
    return [root for root, is_own in _of_modules() if is_own] + [
        of_frame(frame) for frame in reversed(_outside_of_models()) if _is_own(frame.f_code.co_filename)
    ]


def of_calls() -> list[Root]:
    """The variables of all other functions that run: those of libraries, and of modules, where the same is `self`."""
    globals_of_modules = {id(module.__dict__) for _, module in modules()}
    return [of_frame(frame) for frame in running() if not _is_of_module(frame, globals_of_modules)]


def of_libraries() -> list[Root]:
    """The variables of all other modules."""
    return [root for root, is_own in _of_modules() if not is_own]


def _of_modules() -> Iterator[tuple[Root, bool]]:
    for name, module in modules():
        own = not _is_ours(name) and (name == "__main__" or _is_own(module.__dict__.get("__file__")))
        text = f"global of {_file_of(module) if own else name}"
        yield Root(module.__dict__, Name("", text, role="variables")), own


def of_frame(frame: FrameType) -> Root:
    return Root(frame, Name("", f"local of {place_of(frame.f_code)}", role="local"))


def modules() -> list[tuple[str, ModuleType]]:
    return [(name, module) for name, module in list(sys.modules.items()) if issubclass(type(module), ModuleType)]


def running() -> list[FrameType]:
    """The frames of all threads, the innermost first, without Amanda's."""
    return [frame for newest in _newest() for frame in _outwards(newest)]


def _newest() -> list[FrameType]:
    """The innermost frame of each thread; here, of the program. A frame that has itself in a variable would live on."""
    others = sys._current_frames()
    del others[threading.get_ident()]
    here = sys._getframe().f_back
    while here is not None and _is_of_amanda(here):
        here = here.f_back
    return [*others.values()] if here is None else [here, *others.values()]


def _outside_of_models() -> list[FrameType]:
    found: list[FrameType] = []
    globals_of_modules = {id(module.__dict__) for _, module in modules()}
    for newest in _newest():
        frames = _outwards(newest)
        calls = [i for i, frame in enumerate(frames) if frame.f_code is RUN_MODULE]
        found += frames[calls[-1] + 1 if calls else 0 :]
    return [frame for frame in found if not _is_of_module(frame, globals_of_modules)]


def _is_of_module(frame: FrameType, globals_of_modules: Container[int]) -> bool:
    """True if its variables are those of a module, which is a root itself; false for code that `exec` runs elsewhere."""
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    return not is_function and id(frame.f_globals) in globals_of_modules and frame.f_locals is frame.f_globals


def _outwards(newest: FrameType) -> list[FrameType]:
    return [frame for frame in outwards(newest) if not _is_of_amanda(frame)]


def _is_of_amanda(frame: FrameType) -> bool:
    return _is_ours(str(frame.f_globals.get("__name__")))


def _file_of(module: ModuleType) -> str:
    file = module.__dict__.get("__file__")
    return short_line(f"{file}:1").rpartition(":")[0] if file else str(module.__dict__.get("__name__"))


def _is_own(file: object) -> bool:
    return isinstance(file, str) and not file.startswith("<frozen") and not is_library(file)


def _is_ours(name: str) -> bool:
    return name == "amanda" or name.startswith("amanda.")
