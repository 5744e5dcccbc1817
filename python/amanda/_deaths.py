"""Tells when something dies that is known by its address."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

_watched: dict[int, tuple[weakref.ref[Any], dict[Callable[[int], object], None]]] = {}


def watch(thing: Any, died: Callable[[int], object]) -> None:
    """Calls `died(id(thing))` when `thing` is gone: once, however often it is asked to."""
    key = id(thing)
    if key not in _watched:
        _watched[key] = weakref.ref(thing, lambda _: _tell(key)), {}
    _watched[key][1][died] = None


def watched(key: int) -> bool:
    """Is something at this address that is alive and watched?"""
    return key in _watched


def _tell(key: int) -> None:
    for died in _watched.pop(key)[1]:
        died(key)
