"""Switches of the calling thread: instrumentation and its cache, on and off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from amanda._core import Switch, is_cache_enabled, is_enabled

__all__ = ["cache_disabled", "cache_enabled", "disabled", "enabled", "is_cache_enabled", "is_enabled"]


@contextlib.contextmanager
def _switched(which: str, on: bool) -> Iterator[None]:
    switch = Switch(which, on)
    try:
        yield
    finally:
        switch.put_back()


def disabled() -> contextlib.AbstractContextManager[None]:
    """``with amanda.disabled():`` runs its body as if no scope were open."""
    return _switched("instrumentation", False)


def enabled() -> contextlib.AbstractContextManager[None]:
    """``with amanda.enabled():`` undoes `disabled` inside it."""
    return _switched("instrumentation", True)


def cache_disabled() -> contextlib.AbstractContextManager[None]:
    """``with amanda.cache_disabled():`` analyses every operator each time it runs. Contexts keep their keys."""
    return _switched("cache", False)


def cache_enabled() -> contextlib.AbstractContextManager[None]:
    """``with amanda.cache_enabled():`` undoes `cache_disabled` inside it."""
    return _switched("cache", True)
