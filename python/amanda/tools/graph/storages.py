"""Storages: the edges of programs that PyTorch runs eagerly, found while they run, by the memory of tensors."""

from __future__ import annotations

from typing import Any, Literal

import torch

from amanda import Action, OpContext
from amanda.toolkit import Skips, locks
from amanda.toolkit.arrays import of_torch
from amanda.toolkit.native import NativeRoutine, torch_tools
from amanda.toolkit.schemas import is_written
from amanda.toolkit.torch import WithoutTorchFunction, parse_schema

from .graph import Graph, Node, NodeId

# Places kept per storage. Tensors at an evicted place count as made by the maker of the place evicted last.
MAX_VIEWS = 1024


class Edges:
    """Looks each operand up before an operator, and notes each result after it.

    Where that adds nothing to the graph, `torch_tools.Storages` does it without Python.
    """

    def __init__(self, graph: Graph, skips: Skips) -> None:
        self._graph, self._skips = graph, skips
        self._lock = locks.rlock()  # of what follows
        self._storages = torch_tools.Storages(MAX_VIEWS)
        self._numbers: dict[NodeId, int] = {}  # of nodes, which the storages know by number
        self._nodes: list[Node] = []

    def reset(self) -> None:
        with self._lock:
            self._storages.reset()

    def trace(self, context: OpContext, node: Node, once: bool) -> None:
        op = context.op
        node = context["node"] = self._add(node)
        schema = parse_schema(op.schema)
        written = [i for i, argument in enumerate(schema.arguments) if is_written(argument)]
        returned = [i for i, result in enumerate(schema.returns) if not is_written(result)]
        names = op.input_names
        self._consume(*context.inputs, node=node, names=names)
        before: Any = self._before
        after: Any = self._after
        if not once:
            natively = self._storages.routines(self._numbers[node.id], written, returned)
            before, after = map(NativeRoutine, natively, (before, after))
        done = [context.insert_before_op(before, with_run=True, node=node, names=names, written=written)]
        action = context.insert_after_op(after, returned, with_run=True, node=node, done=done if once else [])
        done.append(action)

    def _consume(self, *inputs: Any, node: Node, names: list[str]) -> list[torch_tools.Read]:
        with self._lock, WithoutTorchFunction():
            found = [
                self._read(tensor, node, position, member, names[position])
                for position, value in enumerate(inputs)
                for member, tensor in enumerate(_tensors(value))
            ]
        return [read for read in found if read is not None]

    def _before(self, *inputs: Any, run: dict[str, Any], node: Node, names: list[str], written: list[int]) -> None:
        with self._lock:
            node = self._add(node)  # it may be gone since its analysis: a reset
        run["reads"] = self._consume(*inputs, node=node, names=names)
        with WithoutTorchFunction():
            run["written"] = [tensor for position in written for tensor in _tensors(inputs[position])]

    def _after(self, *results: Any, run: dict[str, Any], node: Node, done: list[Action]) -> None:
        # The tensors that an in-place operator wrote to are looked up through its arguments, not its result: the first
        # run that autograd records happens on a copy.
        with self._lock, WithoutTorchFunction():
            node = self._add(node)
            reads = run["reads"] if "reads" in run else self._storages.declined_reads()
            for tensor in map(self._tracked, run.get("written", ())):
                if tensor is not None:
                    self._storages.write(tensor, self._numbers[node.id])
            for value in results:
                for tensor in map(self._tracked, _tensors(value)):
                    if tensor is not None:
                        self._storages.make(tensor, self._numbers[node.id], reads)
        for action in done:
            action.remove()

    def _read(self, tensor: torch.Tensor, consumer: Node, position: int, member: int, name: str) -> Any:
        """Connects the producers of `tensor` with its consumer. Returns None if it is not tracked."""
        tracked = self._tracked(tensor)
        if tracked is None:
            return None
        outside = -1
        if self._storages.is_new_outside(tracked):
            kind: Literal["input", "parameter"] = "parameter" if isinstance(tensor, torch.nn.Parameter) else "input"
            text_id = f"{consumer.text_id}.{position}.{member}"
            made = self._add(Node(text_id, kind, name, consumer.module_path, consumer.source))
            outside = self._numbers[made.id]
        read, producers = self._storages.read(tracked, self._numbers[consumer.id], position, member, outside)
        for producer in producers:
            self._graph._connect(self._nodes[producer], consumer, position)
        return read

    def _add(self, node: Node) -> Node:
        """The graph's node of that id."""
        node = self._graph._add(node)
        with self._lock:
            number = self._numbers.setdefault(node.id, len(self._nodes))
            if number == len(self._nodes):
                self._nodes.append(node)
            self._nodes[number] = node
        self._storages.add_node(number)
        return node

    def _tracked(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor without the wrappers of vmap and grad; None if it has no storage that can be read."""
        tensor = torch.func.debug_unwrap(tensor)
        if of_torch.is_symbolic(tensor):
            self._skips.add("symbolic")
            return None
        try:
            tensor.untyped_storage()
            if not tensor.is_nested:
                tensor.stride()
        except RuntimeError as error:  # also NotImplementedError: it has no storage
            self._skips.add(of_torch.why_unreadable(tensor) or "failed", str(error))
            return None
        return tensor


def _tensors(value: Any) -> list[torch.Tensor]:
    """An operand's tensors: itself, or the members of a list."""
    members = value if isinstance(value, (list, tuple)) else [value]
    return [member for member in members if isinstance(member, torch.Tensor) and not of_torch.is_number(member)]
