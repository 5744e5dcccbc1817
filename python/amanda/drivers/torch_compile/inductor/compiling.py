"""Compiling a graph with taps, if inductor does it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import fx

from amanda.drivers.torch_compile.inductor import order, port


@contextlib.contextmanager
def compiling(gm: fx.GraphModule, backend: str) -> Iterator[None]:
    """A context in which the program's backend compiles the graph. Enter it under compile_lock."""
    if backend != "inductor" and not port.is_imported():
        yield
        return
    with port.ordering(order.ordered), port.caching_effects(gm):
        yield
