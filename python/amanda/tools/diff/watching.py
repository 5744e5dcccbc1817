"""Watching: what recording and comparing have in common. A routine gets each execution of each operator."""

from __future__ import annotations

import hashlib
import linecache
from typing import Any

from amanda import _fork
from amanda.op_context import OpContext
from amanda.tool import Tool
from amanda.tools import _eager_only
from amanda.tools._schemas import Sides
from amanda.tools.diff.record import Station


class Watching(Tool):
    """Calls `_ran` after each outermost operator that computes something, forward and backward. Views, and memory without
    values, are left out: what they show is compared where it is made or read."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._lock = _fork.lock()
        self.add_inst_for_op(self._analyze)
        self.add_inst_for_op(self._analyze_backward, backward=True)

    def _ran(self, station: Station, results: tuple[Any, ...], inputs: list[str], names: list[str]) -> Any:
        """One execution. Results are tensors, lists of them, or other values; `inputs` tells what it ran on: a hash for a
        tensor, a text for anything else; `names` has their names. What it returns replaces the results."""
        raise NotImplementedError

    def _analyze(self, context: OpContext) -> None:
        _eager_only.check(context, "their operators have no results of their own to compare")
        sides = Sides.of(context)
        if sides.is_view or sides.is_uninitialized:
            return
        names = list(context.op.input_names)
        parameters = context.parameter_names
        for position, name in enumerate(parameters):
            if isinstance(name, str):
                names[position] = f"{names[position]} ({name})"
        station = _station(context)
        context.insert_before_op(self._before, with_run=True)
        context.insert_after_op(self._after, with_run=True, station=station, names=names)

    def _analyze_backward(self, context: OpContext) -> None:
        station = _station(context)
        if station.backward_op == "AccumulateGrad":
            return  # it has no results
        context.insert_after_backward_op(self._after_backward, grad_outputs=None, station=station)

    def _before(self, *inputs: Any, run: dict[str, Any]) -> None:
        run["inputs"] = [told(value) for value in inputs]

    def _after(self, *results: Any, run: dict[str, Any], station: Station, names: list[str]) -> Any:
        return self._ran(station, results, run.pop("inputs"), names)

    def _after_backward(self, *results: Any, grad_outputs: tuple[Any, ...], station: Station) -> Any:
        names = [f"grad_outputs[{i}]" for i in range(len(grad_outputs))]
        return self._ran(station, results, [told(value) for value in grad_outputs], names)


def told(value: Any) -> str:
    """What a value is: a hash of a tensor's elements, the text of anything else."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.dim() == 0 and value.dtype in (torch.float64, torch.int64) and value.device.type == "cpu":
            return repr(value.item())  # mostly a number of the program that PyTorch has wrapped
        return f"tensor {str(value.dtype).removeprefix('torch.')}{list(value.shape)} {_hash(value)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(told, value))}]"
    return "generator" if isinstance(value, torch.Generator) else repr(value)


def _hash(tensor: Any) -> str:
    import torch

    try:
        elements = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    except (RuntimeError, NotImplementedError, TypeError):
        return "unreadable"
    return hashlib.blake2b(elements.numpy().data, digest_size=8).hexdigest()


def _station(context: OpContext) -> Station:
    op, backward_op = context.op, context.get_backward_op()
    file, _, line = context.source.rpartition(":")
    text = linecache.getline(file, int(line)).strip() if line.isdigit() else ""
    return Station(
        context.op_id,
        context.get_backward_op_id(),
        f"{op.name}.{op.overload}" if op.overload else op.name,
        backward_op.__name__ if backward_op is not None else "",
        context.module_path,
        context.source,
        text,
    )
