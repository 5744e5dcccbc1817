"""Places of eager operators: the id, the module path and the source line, from Python's stack."""

from __future__ import annotations

import os
import weakref
from types import CodeType, FrameType

import tensorflow as tf

from amanda.driver.identity import frames, roots
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import places

_MOST = 100_000
_LIBRARY = os.path.dirname(tf.__file__)
_GENERATED = os.path.join(_LIBRARY, "python", "ops", "gen_")
_EXECUTE = os.path.join(_LIBRARY, "python", "eager", "execute.py")

_watched: set[int] = set()  # addresses of code objects that are alive


class Places:
    """The places that one thread knows. An operator's place is found by the addresses of its frames' code and the
    offsets in them."""

    def __init__(self) -> None:
        # With the code of the frames, so that its address stays its own.
        self._known: dict[tuple[object, ...], tuple[places.Place, list[CodeType]]] = {}

    def place_of(self, operator: str, frame: FrameType | None) -> places.Place:
        """The place of the operator that `frame` runs. It consists of the name scope, and the calls up to the frame
        that entered the scope, or that `amanda.root` marks."""
        entered, blocks = roots.entered_here(), roots.blocks()
        scope = port.name_scope()
        key: list[object] = [operator, scope]
        stack: list[FrameType] = []
        for each in frames.outwards(frame):
            stack.append(each)
            key += (id(each.f_code), each.f_lasti, frames.module_of(each))
            if id(each) in blocks:
                key.append(roots.tag_of(id(each)))
            if entered.get(id(each)) is each.f_code:
                break
        known = self._known.get(found := tuple(key))
        if known is None:
            if len(self._known) >= _MOST:  # the code of functions that are made again and again
                self._known.clear()
            known = self._known[found] = _resolve(operator, scope, stack), [each.f_code for each in stack]
        return known[0]


def _resolve(operator: str, scope: str, stack: list[FrameType]) -> places.Place:
    path: list[object] = []
    for each in stack:
        _watch(each.f_code)
        mark = roots.mark_of(each)
        if mark is not None and mark.place:
            path.append(mark.place)
        elif not _is_machinery(each.f_code.co_filename):
            path.append(frames.place_of(frames.module_of(each), each.f_code, each.f_lasti))
        if mark is not None:
            break
    module_path = frames.encodable(scope.strip("/").replace("/", "."))
    return places.Place(frames.hash_of((operator, scope, path)) or 1, module_path, _source(stack))


def _is_machinery(filename: str) -> bool:
    """True if the file is between an operator and the function that calls it. TensorFlow has two ways between these."""
    return filename.startswith(_GENERATED) or filename == _EXECUTE or frames.is_ours(filename)


def _source(stack: list[FrameType]) -> str:
    for frame in stack:
        if not places.is_library(frame.f_code.co_filename):
            return frames.encodable(f"{frame.f_code.co_filename}:{frame.f_lineno}")
    return ""


def _watch(code: CodeType) -> None:
    """Positions in code are known by its address, as long as it lives."""
    address = id(code)
    if address not in _watched:
        _watched.add(address)
        weakref.finalize(code, _forget, address).atexit = False


def _forget(address: int) -> None:
    _watched.discard(address)
    frames.forget(address)
