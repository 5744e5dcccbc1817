"""The parts of a regime."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Model = Callable[[Any], Any]


class Program(NamedTuple):
    """A program of a regime, which is new each time."""

    model: Any  # the module or function that was made for it
    run: Model  # that model in the regime
    x: Any
    train: Callable[[Any], object]  # runs the backward pass of a result, if it has one


class Regime(NamedTuple):
    program: Callable[[str], contextlib.AbstractContextManager[Program]]  # of the network with this name
    options: dict[str, Any] = {}  # of amanda.apply


def plain(make: Callable[[str], Program]) -> Callable[[str], contextlib.AbstractContextManager[Program]]:
    @contextlib.contextmanager
    def program(network: str) -> Iterator[Program]:
        yield make(network)

    return program
