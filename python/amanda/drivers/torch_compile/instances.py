"""The instances of a compiled graph: the layers that share it, and the places that the compiled function is called at.

An instance decides the ids of the graph's operators. Nothing here keeps a module or a parameter alive.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import torch

from amanda import _torch
from amanda.drivers.torch import call_path, lifetimes
from amanda.drivers.torch_compile import capture, port

_MOST_CALLERS = 4096  # that are remembered; more are looked at again


class Instance:
    """Hashable by identity: equal instances are the same object."""

    def __init__(self, frame: FrameType | None, callers: list[call_path.Step], args: Sequence[Any]) -> None:
        self._callers = [
            (step._replace(runs=None), None if step.runs is None else weakref.ref(step.runs)) for step in callers
        ]
        self._inputs = {i: weakref.ref(arg) for i, arg in enumerate(args) if _is_lasting(arg)}
        self._modules: dict[str, weakref.ref[Any]] = {}
        self._frame = frame
        self._traced = frame is None  # while Dynamo compiles

    def callers(self) -> list[call_path.Step]:
        """The steps around the compiled frame."""
        return [step if runs is None else step._replace(runs=runs()) for step, runs in self._callers]

    def inputs(self, examples: Sequence[Any]) -> dict[int, Any]:
        """The parameters and buffers of this instance, by the addresses of those in `examples`, which come in the same
        order."""
        return {id(examples[i]): known() for i, known in self._inputs.items()}

    def module(self, traced: capture.Module) -> Any:
        """The instance's own module in place of the one that was traced; None: there is none."""
        raise NotImplementedError


class Instances:
    """Of one graph."""

    def of(self, args: Sequence[Any]) -> Instance:
        """The instance that runs now, or is compiled now, with these inputs."""
        raise NotImplementedError


def _is_lasting(value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter) or hasattr(value, "_dynamo_static_input_type")
