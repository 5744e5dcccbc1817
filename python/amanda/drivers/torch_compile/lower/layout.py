"""The layout of an operator's operands among a node's tensors and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from amanda.drivers.torch_compile.program.symbols import is_float, is_number

#: An operand for amanda._torch_compile.Slot: None, ("tensor", number), ("number", number), ("constant", value), or a list
#: of these.
Layout = Any


class Values:
    """The operands of a node: tensors and numbers, in the order in which they are added. An operand that is added again
    keeps its place. `graph`: the node's, at whose end it will be added."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self.tensors: list[fx.Node] = []
        self.numbers: list[Any] = []
        self.examples: list[torch.Tensor] = []  # of the tensors

    def add(self, value: Any, example: Any) -> Layout:
        """Adds an operand. `example`: a fake one."""
        if isinstance(example, torch.Tensor) and not isinstance(value, fx.Node | None):
            return "constant", example  # a number, as PyTorch passes it
        if isinstance(example, torch.Tensor) and isinstance(value, fx.Node) and not is_number(example):
            self.tensors.append(value)
            self.examples.append(example)
            return "tensor", len(self.tensors) - 1
        if isinstance(value, fx.Node) and is_float(example):
            return self._add_float(value)
        if isinstance(value, fx.Node):
            if not isinstance(example, int | torch.SymInt) and not is_number(example):
                raise NotImplementedError(f"an operand is a {type(example).__name__} that is known only at run time")
            self.numbers.append(value)
            return "number", len(self.numbers) - 1
        if isinstance(value, tuple | list) and _has_node(value):
            if any(map(is_float, example)):
                raise NotImplementedError("an operand is a list of numbers, of which one is known only at run time")
            return [self.add(one, each) for one, each in zip(value, example, strict=True)]
        return None if value is None else ("constant", list(value) if isinstance(value, tuple) else value)

    def _add_float(self, value: fx.Node) -> Layout:
        """As a tensor: the numbers of a node are integers. It is a product, which PyTorch can compute from a float that
        changes from call to call. With scalar_tensor, it would compile the function again for each value."""
        aten, double = torch.ops.aten, {"dtype": torch.float64}
        one = self._graph.call_function(aten.scalar_tensor.default, (1.0,), double)
        self.tensors.append(self._graph.call_function(aten.mul.Tensor, (one, value)))
        self.examples.append(torch.empty((), dtype=torch.float64))
        return "tensor", len(self.tensors) - 1


def _has_node(value: Any) -> bool:
    return any(map(_has_node, value)) if isinstance(value, tuple | list) else isinstance(value, fx.Node)


def tensors_of(layout: Layout) -> list[int]:
    """The numbers of an operand's tensors."""
    if isinstance(layout, list):
        return [number for member in layout for number in tensors_of(member)]
    return [layout[1]] if layout is not None and layout[0] == "tensor" else []


def put(value: Any, layout: Layout, results: Sequence[Any]) -> Any:
    """The operand with these tensors instead of its own."""
    if isinstance(layout, list):
        return type(value)(put(one, each, results) for one, each in zip(value, layout, strict=True))
    return results[layout[1]] if layout is not None and layout[0] == "tensor" else value


def moved(layout: Layout, numbers: dict[int, int]) -> Layout:
    """The operand of another node, whose tensors have these numbers; others are hidden."""
    if isinstance(layout, list):
        return [moved(member, numbers) for member in layout]
    if layout is None or layout[0] != "tensor" or layout[1] not in numbers:
        return None
    return "tensor", numbers[layout[1]]


def form_of(example: torch.Tensor) -> tuple[torch.dtype, list[int | None]]:
    return example.dtype, [size if isinstance(size, int) else size.node.maybe_as_int() for size in example.shape]
