"""Entries of Dynamo's caches that were compiled in scopes are counted apart from those that were not: neither brings the
other closer to Dynamo's limit of recompilations."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from amanda.drivers.torch_compile import port

# Our dispatch keys are in Dynamo's guards. There are two: scopes with filters compile apart from those without.
_KEYS = 2


def enter() -> None:
    """The compiled function that is about to run on this thread looks into, and adds to, our part of the cache. Dynamo
    restores it when the function returns."""
    port.set_region(_ours(port.region()))


@functools.cache
def _ours(region: int) -> int:
    return port.new_region()


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """While a frame is compiled."""
    with port.compile_lock:  # others read the limits under it
        names = "recompile_limit", "accumulated_recompile_limit"
        with port.config.patch({name: getattr(port.config, name) * _KEYS for name in names}):
            yield
