"""The ids of a compiled program's operators, and where they come from: what eager mode shows."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any

import torch

from amanda import _torch
from amanda.drivers.torch.identity import call_path
from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.places import capture
from amanda.drivers.torch_compile.places.instances import Instance
from amanda.drivers.torch_compile.program import backward_ids
from amanda.drivers.torch_compile.program.calls import Call, FunctionOp, Origin

Place = call_path.Identity


class Places:
    """The places of an instance of a graph. Keeps its modules alive: it is for building only."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._callers = instance.callers()
        self._paths: dict[tuple[capture.Traced, ...], call_path.Path] = {}

    def place_of(self, call: Call) -> Place:
        with call_path.naming():
            path = self._path(tuple(_called(*frame) for frame in call.frames) + capture.place_data(call.node))
            tensors = [operand for origin in call.origins if (operand := self._operand(origin)) is not None]
            return call_path.identify(path, _name_hash(call.op), tensors)

    def _path(self, traced: tuple[capture.Traced, ...]) -> call_path.Path:
        if traced not in self._paths:
            steps = [step for i, each in enumerate(traced) if (step := self._step(each, traced[i + 1 :])) is not None]
            self._paths[traced] = call_path.path_of([*steps, *self._callers])
        return self._paths[traced]

    def _step(self, traced: capture.Traced, around: Sequence[capture.Traced]) -> call_path.Step | None:
        code, offset, python_module, runs, _ = traced
        module = None
        if runs is not None:
            module = self._instance.module(runs)
            if module is None:
                return None
        return call_path.step_at(code, offset, python_module, module, self._module_around(around))

    def _module_around(self, around: Sequence[capture.Traced]) -> Any:
        """The innermost module that runs around a step, whose code may be made from the module's graph."""
        for each in around:
            if each.runs is not None:
                return self._instance.module(each.runs)
        return next((step.runs for step in self._callers if step.runs is not None), None)

    def _operand(self, origin: Origin) -> tuple[int, Any, bool]:
        tensor = origin.tensor
        counts = isinstance(tensor, torch.nn.Parameter)
        base = None if counts or hasattr(tensor, port.STATIC_INPUT) else tensor._base
        if base is not None:  # a view that the graph gets: PyTorch calls some of these leaves
            return origin.position, base, isinstance(base, torch.nn.Parameter)
        if not counts and not origin.is_view:
            counts = tensor.requires_grad and tensor.grad_fn is None
        return origin.position, tensor, counts


def _called(code: CodeType, offset: int) -> capture.Traced:
    """A Python function of torch's that a node calls."""
    return capture.Traced(code, offset, _module_of_file(code.co_filename))


@functools.cache
def _module_of_file(path: str) -> str:
    return next((name for name, module in list(sys.modules.items()) if getattr(module, "__file__", None) == path), "")


@functools.cache
def _name_hash(op: port.OpOverload | FunctionOp) -> int:
    if isinstance(op, FunctionOp):
        return backward_ids.hash_of_function(op)
    return _torch.name_hash(op._schema.name, op._schema.overload_name)
