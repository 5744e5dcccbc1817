"""Switches of the calling thread: instrumentation and its cache."""

from __future__ import annotations

import contextlib
import threading

from amanda._core import Error, Switch, is_cache_enabled, is_enabled
from amanda.driver import registry

__all__ = ["cache_disabled", "cache_enabled", "disabled", "enabled", "is_cache_enabled", "is_enabled"]


class _Switched(contextlib.ContextDecorator):
    """Sets a switch of the thread that enters it. Leaving it on another thread raises an error and changes nothing."""

    def __init__(self, which: str, on: bool) -> None:
        self._which, self._on, self._here = which, on, _Turned()

    def __repr__(self) -> str:
        return f"<amanda switch: {self._which} {'on' if self._on else 'off'}>"

    def __enter__(self) -> None:
        self._here.switches.append(Switch(self._which, self._on))

    def __exit__(self, *_: object) -> None:
        if not self._here.switches:
            raise Error("[scope] this switch was turned on another thread; put it back where it was turned")
        self._here.switches.pop().put_back()


class _Turned(threading.local):
    def __init__(self) -> None:
        self.switches: list[Switch] = []


class _OwnWork(contextlib.AbstractContextManager[None]):
    """For one use. It is entered in each backward pass by some tools."""

    def __enter__(self) -> None:
        self._entered: list[contextlib.AbstractContextManager[None]] = []
        self._switch = Switch("instrumentation", False)
        try:
            for driver in registry.loaded():
                context = driver.own_work()
                context.__enter__()
                self._entered.append(context)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        while self._entered:
            self._entered.pop().__exit__(None, None, None)
        self._switch.put_back()


def disabled() -> contextlib.AbstractContextManager[None]:
    """``with amanda.disabled():`` runs its body as if no scope were open."""
    return _Switched("instrumentation", False)


def own_work() -> contextlib.AbstractContextManager[None]:
    """``with own_work():`` is `disabled` for operators of a tool outside of its routines: they are not the program's."""
    return _OwnWork()


def enabled() -> contextlib.AbstractContextManager[None]:
    """``with amanda.enabled():`` re-enables instrumentation inside `disabled`."""
    return _Switched("instrumentation", True)


def cache_disabled() -> contextlib.AbstractContextManager[None]:
    """``with amanda.cache_disabled():`` analyzes every operator on every run. Contexts keep their keys."""
    return _Switched("cache", False)


def cache_enabled() -> contextlib.AbstractContextManager[None]:
    """``with amanda.cache_enabled():`` re-enables the cache inside `cache_disabled`."""
    return _Switched("cache", True)
