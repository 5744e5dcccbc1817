"""Loads: calls rules after each `load_state_dict` of a module, while a scope is open. Imports torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from amanda.toolkit import Place
from amanda.toolkit.frames import program_line

from .rule import Load, Rule

_Listener = Callable[[Load], None]
_listeners: list[_Listener] = []
_plain = torch.nn.Module.load_state_dict


@functools.wraps(_plain)
def _told(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
    result = _plain(self, state_dict, *args, **kwargs)
    if _listeners:
        place = Place(None, f"{type(self).__name__}.load_state_dict", "", program_line(sys._getframe(1)))
        unexpected = frozenset(getattr(result, "unexpected_keys", ()))
        assigns = bool(kwargs.get("assign", args[1] if args[1:] else False))
        for listener in tuple(_listeners):
            listener(Load(self, state_dict, unexpected, place, assigns))
    return result


class Loads:
    """PyTorch has no hook for the loads of all modules: their method is replaced while some scope is open."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [rule for rule in rules if type(rule).after_load is not Rule.after_load]

    def open(self) -> None:
        if self._rules and self._on_load not in _listeners:
            _listeners.append(self._on_load)
            if torch.nn.Module.load_state_dict is _plain:
                torch.nn.Module.load_state_dict = _told

    def close(self) -> None:
        if self._on_load in _listeners:
            _listeners.remove(self._on_load)
            if not _listeners and torch.nn.Module.load_state_dict is _told:
                torch.nn.Module.load_state_dict = _plain

    def _on_load(self, load: Load) -> None:
        for rule in self._rules:
            rule.call(rule.after_load, load)
