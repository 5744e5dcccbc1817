"""Watching: what recording and comparing have in common. A routine gets each execution of each operator."""

from __future__ import annotations

import collections
import dataclasses
import functools
import linecache
from collections.abc import Callable, Sequence
from typing import Any

from amanda import _fork
from amanda.op_context import OpContext
from amanda.run import Run
from amanda.tool import Tool
from amanda.tools._schemas import Sides
from amanda.tools.diff.record import Station
from amanda.tools.diff.texts import text_of

_COLLECTIVES = ("c10d::", "_c10d_functional::")  # they return before their results are there


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """An execution of an operator."""

    tensors: list[Any]  # results, then what it changed in place and does not return
    inputs: list[str]  # texts, of before it ran
    forward: int | None  # of a backward operator: which run of the forward operator it belongs to
    are_views: bool  # results share memory with an input: they can't be replaced
    exact: Callable[[], list[Any] | None] | None = None  # what `tensors` are in float64


class Watching(Tool):
    """Calls `_ran` after each outermost operator, forward and backward, but for collectives, and those that return memory
    without values."""

    def __init__(self, name: str, *, float64: bool = False) -> None:
        super().__init__(name)
        self._wants_float64 = float64
        self._lock = _fork.lock()
        self._numbers: collections.Counter[int] = collections.Counter()  # of runs of forward operators, by id
        self.add_inst_for_op(self._analyze)
        self.add_inst_for_op(self._analyze_backward, backward=True)

    def _ran(self, station: Station, seen: Seen) -> Sequence[Any] | None:
        """One execution. What it returns are new values of `seen.tensors`, on the CPU; None keeps one, or all."""
        raise NotImplementedError

    def _accumulates(self, station: Station, gradient: Any) -> None:
        """`gradient` is being added to that of a leaf."""
        raise NotImplementedError

    def _analyze(self, context: OpContext) -> None:
        sides = Sides.of(context)
        if sides.is_uninitialized or (
            context.op.name.startswith(_COLLECTIVES) and context.op.__name__ != "wait_tensor"
        ):
            return
        station = _station(context)
        written = [station.names.index(name) for name in sides.unreturned]
        read = [i for i, name in enumerate(station.names) if name in sides.read or name in sides.changed]
        context.insert_before_op(self._before, with_run=True, is_view=station.is_view, read=frozenset(read))
        exact = (context.op, written) if self._wants_float64 else None
        context.insert_after_op(self._after, inputs=written, with_run=True, station=station, exact=exact)

    def _analyze_backward(self, context: OpContext) -> None:
        if context.is_symbolic:
            return  # one for each forward operator, where eager mode has the nodes of autograd
        station = _station(context)
        if station.accumulates:
            context.insert_before_backward_op(self._before_accumulation, grad_outputs=[0], station=station)
        else:
            context.insert_after_backward_op(self._after_backward, grad_outputs=None, with_run=True, station=station)

    def _before(self, *inputs: Any, run: Run, is_view: bool, read: frozenset[int]) -> None:
        from amanda.tools.diff import tensors  # here: it imports torch

        run["inputs"] = [text_of(value, is_overwritten=i not in read) for i, value in enumerate(inputs)]
        if self._wants_float64:
            run["values"] = tensors.copied(inputs)
        if is_view:
            run["memory"] = tensors.memory(inputs)

    def _after(
        self,
        *results: Any,
        run: Run,
        station: Station,
        exact: tuple[Callable[..., Any], list[int]] | None,
        inputs: tuple[Any, ...] = (),
    ) -> Any:
        from amanda.tools.diff import tensors

        are_views = station.is_view and not run.pop("memory").isdisjoint(tensors.memory(results))
        with self._lock:
            run["number"] = self._numbers[station.op_id]
            self._numbers[station.op_id] += 1
        found = [*tensors.tensors_in(results), *tensors.tensors_in(inputs)]
        in_float64 = None
        if exact is not None:
            from amanda.tools.diff import float64

            in_float64 = functools.partial(float64.results, exact[0], run.pop("values"), exact[1])
        replaced = self._ran(station, Seen(found, run.pop("inputs"), None, are_views, in_float64))
        if replaced is None:
            return None
        values = iter(replaced)
        edited = [tensors.healed(result, values) for result in results]
        for tensor, value in zip(tensors.tensors_in(inputs), values, strict=True):
            if value is not None:
                # through .data, as autograd does not know of these writes: batch_norm saves its running statistics
                tensor.data.copy_(value)
        return edited[0] if len(edited) == 1 else edited or None

    def _before_accumulation(self, gradient: Any, station: Station) -> None:
        if gradient is not None:
            self._accumulates(station, gradient)

    def _after_backward(self, *results: Any, grad_outputs: tuple[Any, ...], run: Run, station: Station) -> Any:
        from amanda.tools.diff import tensors

        inputs = [text_of(value) for value in grad_outputs]
        replaced = self._ran(station, Seen(list(tensors.tensors_in(results)), inputs, run.get("number"), False))
        if replaced is None:
            return None
        values = iter(replaced)
        edited = [tensors.healed(result, values) for result in results]
        return edited[0] if len(edited) == 1 else edited


def _station(context: OpContext) -> Station:
    op, backward_op = context.op, context.get_backward_op()
    file, _, line = context.source.rpartition(":")
    text = linecache.getline(file, int(line)).strip() if line.isdigit() else ""
    names: tuple[str, ...] = ()
    parameters: tuple[tuple[str, ...], ...] = ()
    if backward_op is None:
        names = tuple(op.input_names)
        parameters = tuple(_names(parameter) for parameter in context.parameter_names)
    return Station(
        context.op_id,
        context.get_backward_op_id(),
        f"{op.name}.{op.overload}" if op.overload else op.name,
        backward_op.__name__ if backward_op is not None else "",
        context.module_path,
        context.source,
        text,
        backward_op is None and Sides.of(context).may_be_view,
        context.is_symbolic,
        names,
        parameters,
    )


def _names(parameter: str | tuple[str | None, ...] | None) -> tuple[str, ...]:
    return tuple(name or "" for name in (parameter if isinstance(parameter, tuple) else (parameter,)))
