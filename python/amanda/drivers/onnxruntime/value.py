"""Value: a value of a graph, as analyses get it. It imports no framework."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from amanda.driver.protocol import Origin, VariableValue


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """A value of a model: an input, a constant, or the result of an operator."""

    name: str
    dtype: np.dtype[Any] | None  # None if it is no tensor that numpy has: a sequence, bfloat16
    shape: (
        tuple[int | str | None, ...] | None
    )  # a word for a size that inputs decide; None if not even the rank is known
    is_constant: bool = False
    made_by: int = 0  # the id of its operator; 0 if it comes from outside
    model: str = ""  # the digest of its model

    def __repr__(self) -> str:
        sizes = "unknown" if self.shape is None else tuple(self.shape)
        return f"<{'constant' if self.is_constant else 'value'} {self.name!r}: {self.dtype}, shape {sizes}>"


def parameter_name(operand: object) -> str | None:
    return operand.name if isinstance(operand, Value) and operand.is_constant else None


def origins(symbol: object) -> Sequence[Origin] | None:
    if not isinstance(symbol, Value):
        return None
    if symbol.made_by:
        return [Origin(symbol.made_by)]
    return [Origin(None, (symbol.model, symbol.name), symbol.is_constant)]


def variable_of(symbol: object) -> VariableValue | None:
    """A constant of floating point: a file does not say which of them are weights."""
    if not isinstance(symbol, Value) or not symbol.is_constant or symbol.dtype is None or symbol.dtype.kind != "f":
        return None
    shape = symbol.shape
    is_known = shape is not None and all(isinstance(size, int) for size in shape)
    elements = int(np.prod(np.array(shape, np.int64))) if is_known else None
    rank = None if shape is None else len(shape)
    return VariableValue((symbol.model, symbol.name), symbol.name, None, True, elements, rank)


def describe(operand: object) -> dict[str, Any] | None:
    """For C++ tools."""
    if isinstance(operand, np.ndarray):
        sizes = list(operand.shape)
        return {"dtype": str(operand.dtype), "sizes": sizes, "device": "cpu", "bytes": operand.nbytes}
    if not isinstance(operand, Value) or operand.dtype is None:
        return None
    known: dict[str, Any] = {"dtype": str(operand.dtype), "device": "cpu"}
    if operand.shape is not None:
        known["sizes"] = [size if isinstance(size, int) else None for size in operand.shape]
        if all(isinstance(size, int) for size in operand.shape):
            known["bytes"] = int(np.prod(known["sizes"], dtype=np.int64)) * operand.dtype.itemsize
    return known
