"""Objects that no variable leads to: C or C++ code holds them, or a reference cycle that was not collected yet."""

from __future__ import annotations

import collections
import gc
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from .kinds import TENSOR
from .names import Name, place_of
from .roots import Root

IN_CPP = "held by C or C++ code, and by no variable"
IN_CYCLE = "in a reference cycle that Python has not collected yet"
_COUNTED = 3  # references of this module to an object: of a list, of a variable, and as an argument
_BUILTIN = ("builtins", "types", "functools", "collections")


def held_outside(others: Sequence[Any]) -> Iterator[Root]:
    """Those to which more refers than the others: Python objects first, since tensors are mostly parts of these."""
    inside: collections.Counter[int] = collections.Counter()
    for thing in others:
        inside.update(map(id, gc.get_referents(thing)))
    held = []
    for thing in others:
        if sys.getrefcount(thing) - _COUNTED > inside[id(thing)]:
            held.append(thing)
    for thing in sorted(held, key=_is_tensor):
        yield Root(thing, Name(_text(thing), IN_CPP, kind="tensor"))


def in_cycles(others: Sequence[Any]) -> Iterator[Root]:
    """The objects by which the program knows a cycle: exceptions and instances of classes; all, if there are none."""
    known = [
        thing for thing in others if type(thing).__module__ not in _BUILTIN or issubclass(type(thing), BaseException)
    ]
    for thing in [each for each in known if not _is_tensor(each)] or others:
        yield Root(thing, Name(_text(thing), IN_CYCLE))


def _is_tensor(thing: Any) -> bool:
    return TENSOR in type(thing).__mro__


def _text(thing: Any) -> str:
    if type(thing) is types.FunctionType:
        return place_of(thing.__code__).partition("(")[0]
    return type(thing).__name__
