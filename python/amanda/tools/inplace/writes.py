"""The writes to each storage, which routines in C++ note."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from amanda import OpContext
from amanda.toolkit import Place, locks, native

from .called import place_of
from .finding import Write
from .refused import Begun


class Site(NamedTuple):
    """An operator that writes to some of its inputs."""

    place: Place
    names: Sequence[str]  # of all its inputs
    by_optimizer: bool


class _Written(NamedTuple):
    """A write, as it is kept: there are many, and few are ever shown."""

    site: int
    input: int
    member: int | None  # of a list
    before: int
    after: int
    view: list[int] | None  # its shape, if it was none of the whole tensor
    shape: list[int]  # of the whole tensor


class Writes:
    """The last writes to each storage. It keeps no tensor's memory, but the address: no other storage gets it."""

    def __init__(self) -> None:
        self._lock = locks.rlock()  # guards the members below
        self._kept: Any = None  # torch_tools.Writes, once an operator of PyTorch runs
        self._sites: list[Site] = []

    def watch(self, context: OpContext, written: Sequence[str], *, by_optimizer: bool) -> None:
        """Notes the operator's writes to these inputs."""
        site = Site(place_of(context), tuple(context.op.input_names), by_optimizer)
        with self._lock:
            self._kept = self._kept or native.torch_tools.Writes()
            self._sites.append(site)
            number = len(self._sites) - 1
        context.insert_before_op(native.always(self._kept.beginning(number)), inputs=written)
        context.insert_after_op(native.always(self._kept.ending()), [])

    def take_begun(self) -> Begun | None:
        """The operator that has begun on this thread, and has not ended. It is forgotten."""
        begun = None if self._kept is None else self._kept.take_begun()
        if begun is None:
            return None
        site = self._sites[begun[0]]
        return Begun(site, [(_name(site, *where), tensor) for *where, tensor in begun[1]])

    def to(self, storage: int) -> list[Write]:
        """In order."""
        kept = [] if self._kept is None else self._kept.to(storage)
        return [self._shown(_Written(*one)) for one in kept]

    def alike(self, size: int, expected: int, version: int) -> list[list[Write]]:
        """For each tensor of that number of elements with this version now: the writes after the expected version."""
        kept = [] if self._kept is None else self._kept.all()
        living = ([_Written(*one) for one in writes] for writes in kept)
        since = ([one for one in writes if one.after > expected] for writes in living)
        return [
            [self._shown(one) for one in writes]
            for writes in since
            if writes and (math.prod(writes[0].shape), writes[-1].after) == (size, version)
        ]

    def _shown(self, one: _Written) -> Write:
        site = self._sites[one.site]
        operand = _name(site, one.input, one.member)
        view = "" if one.view is None else f"a view of shape {tuple(one.view)}"
        return Write(site.place, operand, view, one.before, one.after, site.by_optimizer, tuple(one.shape))


def _name(site: Site, position: int, member: int | None) -> str:
    """The name of an input, or of its member."""
    return site.names[position] if member is None else f"{site.names[position]}[{member}]"


def version(value: Any) -> int | None:
    """None for what has none: no tensor, or one of inference mode."""
    try:
        return int(value._version)
    except (AttributeError, RuntimeError):
        return None
