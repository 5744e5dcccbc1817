"""The taps of an operator, and the nodes that run them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from amanda import _core, _torch_compile
from amanda.drivers.torch_compile.lower import operators
from amanda.drivers.torch_compile.lower.layout import Values
from amanda.drivers.torch_compile.program.calls import Call
from amanda.drivers.torch_compile.view.graph_site import Shown

NO_SLOT = -1


class Planned:
    """An operator's taps, those of its backward operator included."""

    def __init__(self) -> None:
        self.forward: Shown | None = None
        self.backward: Shown | None = None
        self._taps: list[_core.Tap] = []

    def add(self, shown: Shown, taps: list[_core.Tap]) -> None:
        if shown.is_backward:
            self.backward = shown
        else:
            self.forward = shown
        self._taps += taps

    def taps(self, point: str, is_backward: bool = False) -> list[_core.Tap]:
        return [tap for tap in self._taps if tap.point == point and tap.is_backward == is_backward]

    @property
    def shares_run(self) -> bool:
        return any(tap.shares_run for tap in self._taps)

    @property
    def has_backward(self) -> bool:
        return any(tap.is_backward for tap in self._taps)

    @property
    def only_looks(self) -> bool:
        return all(tap.kind == "observe" and not tap.is_backward for tap in self._taps)


class TapNodes:
    """Adds nodes to a graph, at its end. `constant`: what stands for a tensor of a routine's."""

    def __init__(
        self,
        graph: fx.Graph,
        table: fx.Node,
        slots: list[_torch_compile.Slot],
        operators: list[_torch_compile.Operator],
        is_body: bool,
        constant: Callable[[torch.Tensor], fx.Node],
    ) -> None:
        #: The execution that the graph belongs to, if its operators run once in each.
        self.run: fx.Node | None = None
        self._graph, self._table, self._slots, self._operators = graph, table, slots, operators
        self._is_body, self._constant = is_body, constant

    def add_slot(self, operator: _torch_compile.Operator, *args: Any) -> int:
        self._operators.append(operator)
        self._slots.append(_torch_compile.Slot(operator, *args))
        return len(self._slots) - 1

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    @property
    def graph(self) -> fx.Graph:
        return self._graph

    @property
    def is_body(self) -> bool:
        """True for a body of a higher-order operator: effects cannot be compiled there."""
        return self._is_body

    def constant(self, tensor: torch.Tensor) -> fx.Node:
        return self._constant(tensor)

    def node(self, origin: fx.Node, op: Any, *args: Any) -> fx.Node:
        made = self._graph.call_function(op, args)
        made.meta = {name: value for name, value in origin.meta.items() if name != "example_value"}
        return made

    def begin(self, origin: fx.Node) -> list[fx.Node]:
        """The nodes that stand for one execution."""
        return [self.run or self.node(origin, operators.BEGIN, self._table, self.num_slots)]

    def look(self, call: Call, values: Values, run: list[fx.Node], slot: int) -> None:
        self.node(call.node, operators.LOOK, values.tensors, [], values.numbers, run, self._table, slot)

    def edge(self, call: Call, values: Values, run: list[fx.Node], *plan: Any) -> list[fx.Node]:
        made = self.node(call.node, operators.EDGE, values.tensors, values.numbers, run, self._table, *plan)
        return self._members(made, len(values.tensors))

    def opaque(self, call: Call, values: Values, run: list[fx.Node], *plan: Any, count: int) -> list[fx.Node]:
        made = self.node(call.node, operators.OPAQUE, values.tensors, values.numbers, run, self._table, *plan)
        return self._members(made, count)

    def _members(self, made: fx.Node, count: int) -> list[fx.Node]:
        return [self._graph.call_function(operator.getitem, (made, i)) for i in range(count)]


def grouped(taps: list[_core.Tap]) -> Iterator[tuple[str, list[_core.Tap]]]:
    """Taps of one node together; a node each for those that become part of the graph, or are differentiated."""
    for kind, together in itertools.groupby(taps, _kind):
        if kind == "plain":
            yield kind, list(together)
        else:
            yield from ((kind, [tap]) for tap in together)


def _kind(tap: _core.Tap) -> str:
    if tap.kind == "traceable":
        return "traceable"
    return "differentiable" if tap.differentiable and tap.kind != "observe" else "plain"
