"""Symbols: the nodes of a graph from which values come."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.program.calls import Call, Constant, Ref

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class UntracedError(Exception):
    """A value is no symbol of the graph."""


class Numbers:
    """The symbolic numbers that nodes of a graph have computed, by their expressions."""

    def __init__(self) -> None:
        self._refs: dict[Any, Ref] = {}

    def add(self, value: Any, ref: Ref) -> None:
        if isinstance(value, _NUMBERS):
            self._refs.setdefault(value.node.expr, ref)
        elif isinstance(value, tuple | list):
            for i, member in enumerate(value):
                self.add(member, _member(ref, i))

    def find(self, number: Any) -> Ref | None:
        return self._refs.get(number.node.expr)


class Symbols:
    """The symbols of the values that a node meets: its own operands, and results of the operators that it calls."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers, self._results = numbers, Numbers()
        self._refs: dict[int, Ref | Constant] = {}
        self._kept: list[Any] = []  # so that no other value gets the address of one

    def add_operand(self, node: fx.Node, value: Any) -> None:
        self._add(value, Ref(node))

    def add_constant(self, tensor: torch.Tensor, constant: Constant) -> None:
        self._refs[id(tensor)] = constant
        self._kept.append(tensor)

    def add_results(self, call: Call, outputs: tuple[Any, ...]) -> None:
        for i, value in enumerate(outputs):
            self._add(value, Ref(None, (i,), call))
            self._results.add(value, Ref(None, (i,), call))

    def _add(self, value: Any, ref: Ref) -> None:
        if isinstance(value, torch.Tensor):
            self._refs[id(value)] = ref
            self._kept.append(value)
        elif isinstance(value, tuple | list):
            for i, member in enumerate(value):
                self._add(member, _member(ref, i))

    def ref_of(self, value: Any, takes_numbers: bool = False) -> Any:
        """Refs instead of tensors and symbolic numbers. Raises UntracedError.

        takes_numbers: true if a number may stand for a tensor.
        """
        if isinstance(value, torch.Tensor):
            return self._ref_of_tensor(value, takes_numbers)
        if isinstance(value, _NUMBERS):
            return self._ref_of_number(value)
        if isinstance(value, tuple | list):
            members = [self.ref_of(member, takes_numbers) for member in value]
            return members if isinstance(value, list) else tuple(members)
        return value

    def _ref_of_number(self, number: Any) -> Any:
        known = number.node.maybe_as_int() if isinstance(number, torch.SymInt) else None
        if known is not None:
            return known
        ref = self._results.find(number) or self._numbers.find(number)
        if ref is None:
            raise UntracedError(f"the number {number.node.expr}, which no node computes")
        return ref

    def _ref_of_tensor(self, tensor: torch.Tensor, takes_numbers: bool) -> Any:
        ref = self._refs.get(id(tensor))
        if ref is not None:
            return ref
        number = getattr(tensor, "_wrapped_number", None)
        if takes_numbers and number is not None:
            return self.ref_of(number)
        if takes_numbers and is_number(tensor):
            return number_of(tensor)
        constant = getattr(tensor, "constant", None)
        if isinstance(tensor, port.FakeTensor) and constant is not None and constant.dim() == 0:
            return Constant(number_of(constant), constant.dtype)
        raise UntracedError("a constant, or another tensor that no node of the graph computes")


def is_number(value: Any) -> bool:
    """True if it is a tensor that PyTorch makes of a number among an operator's operands."""
    if not isinstance(value, torch.Tensor) or isinstance(value, port.FakeTensor):
        return False
    return bool(value.dim() == 0 and value.device.type == "cpu")


def is_float(example: Any) -> bool:
    """True if it stands for a number that is no integer."""
    return isinstance(example, torch.SymFloat) or (is_number(example) and example.dtype.is_floating_point)


def number_of(tensor: torch.Tensor) -> Any:
    with port.unset_fake_temporarily():
        return tensor.item()


def _member(ref: Ref, i: int) -> Ref:
    return Ref(ref.node, (*ref.path, i), ref.call)
