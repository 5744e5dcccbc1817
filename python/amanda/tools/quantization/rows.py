"""The common base of the tools of this package: rows that say how each operand is quantized."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import typing
from collections.abc import Callable, Hashable
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from amanda import Tool
from amanda.toolkit import ParameterUse, Place, PlaceRow, Skips, TellsParameters, TellsSkips, locks
from amanda.toolkit.tables import Column, Grouping, Results, fields_of, name_column

Side = Literal["input", "output"]
GroupBy = Literal["id"]


class OperandPlace(NamedTuple):
    """An operand of an operator."""

    place: Place
    side: Side
    position: int | str


@dataclasses.dataclass(frozen=True)
class Row(PlaceRow):
    """How one operand of one operator is quantized: ``q = clamp(round(x / scale) + zero_point, quant_min, quant_max)``."""

    side: Side
    position: int | str  # as it was given: "weight"
    scale: Any  # torch.Tensor, or numpy's array of TensorFlow's values: float32; one element, or one per channel
    zero_point: Any  # integers, of the scale's shape
    quant_min: int
    quant_max: int


class Operand(Protocol):
    def row(self) -> Row | None:
        """The row of the operand; None if it has no scale yet."""


OperandT = TypeVar("OperandT", bound=Operand)


class Quantization(TellsParameters, TellsSkips, Results[Row, GroupBy], Tool):
    """Base class of tools that quantize operands.

    Rows are by "id", one for each operand of each operator that has a scale, in the order in which they first ran. See
    `Results` for `rows`, `table`, `to_pandas` and `reset`. `unhandled` has the parameters that operators compute with and
    that are not quantized there, and `covered` the share that is; both are below tables.
    """

    _speaker = "quantization"
    _groupings = {
        "id": Grouping(
            [
                name_column("id"),
                Column("operand", lambda row: f"{row.side} {row.position}", left=True, field="side"),
                Column("scale", lambda row: _range(row.scale, ".3g"), field="scale"),
                Column("zero point", lambda row: _range(row.zero_point, "d"), field="zero_point"),
                Column("range", lambda row: f"{row.quant_min} to {row.quant_max}", field="quant_min"),
            ],
            fields_of(Row),
        )
    }

    def __init__(self) -> None:
        super().__init__()
        self._operands: dict[Hashable, Operand] = {}
        self._skips = Skips("quantization")
        self._parameters = ParameterUse(self, "quantization")
        self._lock = locks.lock()  # guards the operands

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._operands.clear()
        self._skips.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            return [row for operand in self._operands.values() if (row := operand.row()) is not None]

    def _remarks(self, by: GroupBy) -> list[str]:
        return [self._skips.caption(), self._parameters.caption()]

    def _operand(self, key: Hashable, make: Callable[[], OperandT]) -> OperandT:
        """The operand of this key, made when it is first asked for."""
        with self._lock:
            operand = self._operands.get(key)
            if operand is None:
                with _lasting():
                    operand = self._operands[key] = make()
            return typing.cast(OperandT, operand)  # a tool's keys distinguish its kinds


def _lasting() -> contextlib.AbstractContextManager[None]:
    """In it state is made: it must serve training, too, and outlives a transformation of torch.func."""
    if "torch" not in sys.modules:
        return contextlib.nullcontext()
    from amanda.toolkit.arrays import of_torch

    return of_torch.lasting()


def _range(values: Any, form: str) -> str:
    """The value, or the smallest and the largest one."""
    smallest, largest = (format(extreme.item(), form) for extreme in (values.min(), values.max()))
    return smallest if smallest == largest else f"{smallest} to {largest}"
