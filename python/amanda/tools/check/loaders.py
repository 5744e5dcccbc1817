"""Loaders: calls rules when the iteration of a `DataLoader` begins, while a scope is open. Imports torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import DataLoader

from amanda.toolkit import Place
from amanda.toolkit.frames import is_library, program_line

from .rule import Pass, Rule

_Listener = Callable[[Pass], None]
_listeners: list[_Listener] = []
_plain = DataLoader.__iter__


@functools.wraps(_plain)
def _told(self: Any) -> Any:
    iterator = _plain(self)
    if _listeners:
        caller = sys._getframe(1)
        place = Place(None, type(self).__name__, "", program_line(caller))
        begun = Pass(self, iterator, place, not is_library(caller.f_code.co_filename))
        for listener in tuple(_listeners):
            listener(begun)
    return iterator


class Loaders:
    """PyTorch has no hook for loaders: their method is replaced while some scope is open."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [rule for rule in rules if type(rule).on_pass is not Rule.on_pass]

    def open(self) -> None:
        if self._rules and self._on_pass not in _listeners:
            _listeners.append(self._on_pass)
            if DataLoader.__iter__ is _plain:
                DataLoader.__iter__ = _told

    def close(self) -> None:
        if self._on_pass in _listeners:
            _listeners.remove(self._on_pass)
            if not _listeners and DataLoader.__iter__ is _told:
                DataLoader.__iter__ = _plain

    def _on_pass(self, begun: Pass) -> None:
        for rule in self._rules:
            rule.call(rule.on_pass, begun)
