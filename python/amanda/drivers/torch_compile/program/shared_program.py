"""A program without the tensors that it was learned from, for the instances of a graph: it outlives them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.program.program import Program


@dataclasses.dataclass(frozen=True, slots=True)
class _Input:
    number: int


class SharedProgram:
    """Learned once: it takes a run of the graph on fake tensors."""

    def __init__(self, gm: Any, example_inputs: Sequence[Any]) -> None:
        self._program = Program(gm, example_inputs)
        self._release()

    @contextlib.contextmanager
    def on(self, args: Sequence[Any]) -> Iterator[Program]:
        """The program, of the instance with these inputs."""
        self._program.example_inputs = list(args)
        self._replace(lambda value: args[value.number] if isinstance(value, _Input) else value)
        try:
            yield self._program
        finally:
            self._release()

    def _release(self) -> None:
        inputs = enumerate(self._program.example_inputs)
        numbers = {id(value): _Input(i) for i, value in inputs if _is_real(value)}
        self._replace(lambda value: numbers.get(id(value), value))
        self._program.example_inputs = []

    def _replace(self, change: Callable[[Any], Any]) -> None:
        for call in self._program.calls:
            call.inputs = _changed(call.inputs, change)
            call.origins = tuple(dataclasses.replace(one, tensor=change(one.tensor)) for one in call.origins)


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, port.FakeTensor)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_changed(member, change) for member in value)
    return change(value)
