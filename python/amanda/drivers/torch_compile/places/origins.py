"""The operators from which the symbols of a compiled program come."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from amanda.driver.protocol import Origin
from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.places.places import Places
from amanda.drivers.torch_compile.program.program import Program


class _Here(threading.local):
    known: Mapping[int, Origin] | None = None  # by the symbol's address; None if no program is instrumented


_here = _Here()


def origins(symbol: object) -> Sequence[Origin] | None:
    """See `amanda.driver.protocol.Driver.origins`."""
    known = _here.known
    if known is None:
        return None
    found = known.get(id(symbol))
    if found is not None:
        return [found]
    # From outside; or a number, which is a part of the program or computed by the compiler.
    return (
        [Origin(None, id(symbol), not isinstance(symbol, port.FakeTensor))] if isinstance(symbol, torch.Tensor) else []
    )


@contextlib.contextmanager
def of(program: Program, places: Places) -> Iterator[None]:
    """While analyses of the program run."""
    outer = _here.known
    _here.known = {
        id(symbol): Origin(places.place_of(call).id)
        for call in program.calls
        if not call.is_function
        for symbol in _symbols(call.outputs)
    }
    try:
        yield
    finally:
        _here.known = outer


def _symbols(value: Any) -> Iterator[Any]:
    for member in value:
        if isinstance(member, tuple | list):
            yield from _symbols(member)
        elif member is not None:
            yield member
