"""What ran in a scope otherwise than the program runs alone, or unseen, as sentences."""

from __future__ import annotations

import collections
from collections.abc import Iterable

from amanda.drivers import Unwatched

_NAMES = 3  # that are listed


def sentences(parts: Iterable[Unwatched]) -> list[str]:
    """ "1 compiled function (train.step (train.py:7)) ran eagerly"."""
    names: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for part in parts:
        names[part.what, part.how].append(part.name)
    return [f"{len(some)} {_plural(what, len(some))} ({_listed(some)}) {how}" for (what, how), some in names.items()]


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


def _plural(what: str, count: int) -> str:
    if count == 1:
        return what
    first, of, rest = what.partition(" of ")
    return f"{first}s{of}{rest}"
