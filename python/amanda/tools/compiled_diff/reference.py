"""The reference: a graph that runs node by node, eagerly; its values, and the units into which it may be cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from .copies import copies, storage_of
from .outcomes import forked


class Reference:
    """Runs it on copies of the inputs.

    Attributes:
        graph: the graph.
        values: of each node. Those that a later node has written to are not kept as they were: all nodes that use them are
            in one unit, but for inputs of the graph, which are.
        units: lists of nodes, in order. A graph can be cut between two units, not inside one.
    """

    def __init__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> None:
        self.graph = graph
        run = _Run(graph)
        with forked():
            run.run(*copies(inputs))
        self.values = run.values
        for node, value in zip(_placeholders(graph), inputs, strict=True):
            self.values[node] = value
        self.units = _units(graph, run)

    def is_state(self, node: fx.Node) -> bool:
        """True if it changes a mode, such as autocast: it is a part of all pieces."""
        return node.op.startswith("call_") and _is_state(node, self.values)


class _Run(fx.Interpreter):  # type: ignore[misc]
    """Notes values, the memory that each node uses, and the memory that is written to."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.values: dict[fx.Node, Any] = {}
        self.memory: dict[fx.Node, set[int]] = {}
        self.writers: dict[int, list[fx.Node]] = {}  # of each memory that is written to
        self._versions: dict[int, tuple[torch.Tensor, int]] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.values[n] = value
        operands = [self.values[one] for one in n.all_input_nodes]
        self.memory[n] = {storage_of(tensor) for tensor in tensors_in([value, *operands])}
        for storage, (tensor, version) in self._versions.items():
            if tensor._version != version:
                self.writers.setdefault(storage, []).append(n)
                self._versions[storage] = tensor, tensor._version
        for tensor in tensors_in(value):
            if not tensor.is_inference():
                self._versions.setdefault(storage_of(tensor), (tensor, tensor._version))
        return value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for member in value:
            yield from tensors_in(member)


def is_plain(value: Any) -> bool:
    """True if it is a number or the like, which can be written into a graph."""
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.device))


def _placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _is_state(node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    value = values[node]
    has_tensors = any(True for _ in tensors_in([value, *(values[one] for one in node.all_input_nodes)]))
    return not has_tensors and (value is None or not is_plain(value))


def _units(graph: fx.GraphModule, run: _Run) -> list[list[fx.Node]]:
    """Spans of nodes that must stay together: those that use memory that one of them writes to, and those that make and
    take apart a tuple."""
    nodes = [node for node in graph.graph.nodes if node.op.startswith("call_")]
    position = {node: i for i, node in enumerate(nodes)}
    spans = []
    of_inputs = {storage for node in _placeholders(graph) for storage in run.memory[node]}
    for storage, writers in run.writers.items():
        users = [position[node] for node in nodes if storage in run.memory[node]]
        # Later nodes read the value that is kept. Inputs are kept as they were before.
        last_of_it = max(users) if storage in of_inputs else max(position[node] for node in writers)
        spans.append((min(users), last_of_it))
    for node in nodes:
        value = run.values[node]
        if isinstance(value, (tuple, list)) and any(True for _ in tensors_in(value)):
            users = [position[user] for user in node.users if user in position]
            spans.append((position[node], max([position[node], *users])))
    last = list(range(len(nodes)))  # of the span that begins at each node
    for start, end in spans:
        last[start] = max(last[start], end)
    units: list[list[fx.Node]] = []
    reach = -1
    for i, node in enumerate(nodes):
        if i > reach:
            units.append([])
        reach = max(reach, last[i])
        units[-1].append(node)
    return [unit for unit in units if any(_computes(node, run) for node in unit)]


def _computes(node: fx.Node, run: _Run) -> bool:
    """True if it makes a tensor, or writes to one."""
    makes = any(True for _ in tensors_in(run.values[node]))
    return makes or not run.writers.keys().isdisjoint(run.memory[node])
