"""Entries of Dynamo's caches that were compiled in scopes are counted apart from those that were not: neither brings the
other closer to Dynamo's limit of recompilations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from amanda.core import fork
from amanda.drivers.torch_compile import port

# Our dispatch keys are in Dynamo's guards. There are two: scopes with filters compile apart from those without.
_KEYS = 2

_lock = fork.rlock()
_ours: dict[int, int] = {}  # by the program's, and by itself


def enter() -> None:
    """The compiled function that is about to run on this thread looks into, and adds to, our part of the cache. Dynamo
    restores it when the function returns. Up to torch 2.12 the cache has no parts."""
    if not port.HAS_REGIONS:
        return
    region = port.region()
    ours = _ours.get(region)
    port.set_region(_make(region) if ours is None else ours)


def _make(region: int) -> int:
    """The same on all threads: they share what they compile. Dynamo's own variable is the process's, not the thread's:
    `region` may be ours already, set by another thread."""
    with _lock:
        if region not in _ours:
            made = port.new_region()
            _ours[region] = _ours[made] = made
        return _ours[region]


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """While a frame is compiled."""
    with port.compile_lock:  # others read the limits under it
        names = "recompile_limit", "accumulated_recompile_limit"
        with port.config.patch({name: getattr(port.config, name) * _KEYS for name in names}):
            yield
