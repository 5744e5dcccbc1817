"""Operands of a graph that can be quantized."""

from __future__ import annotations

from typing import Any, NamedTuple

from amanda import Error, OpContext
from amanda.toolkit.operators import is_array, variable_of
from amanda.tools.mapping import keys_of

from .ranges import MakeObserver, MovingRange
from .rows import OperandPlace


class GraphOperand(NamedTuple):
    position: int
    range: MovingRange
    channels: tuple[int, ...]  # dimensions of output channels, of a range by channel
    variable: object  # a key of the variable; None if the operand is computed


def find(context: OpContext, at: OperandPlace, position: int | str, make: MakeObserver) -> GraphOperand | None:
    """None if the operand is no array. Its dtype may differ when the function is traced again.

    Raises:
        ValueError: there is no such operand.
        amanda.Error: it cannot be observed by what `make` makes.
    """
    operands = context.inputs if at.side == "input" else context.outputs
    index = context.op.input_names.index(position) if isinstance(position, str) else position
    symbol: Any = operands[index]
    if not is_array(symbol):
        return None
    if not isinstance(make, MovingRange):
        raise Error(
            f"[quantization] {at.side} {at.position!r} of {context.op.name} is an array, and {make!r} observes tensors of "
            "PyTorch; use int8_activation, int8_weight, or another MovingRange"
        )
    variable = variable_of(symbol) if at.side == "input" else None
    channels = _output_channels(context, at, index) if make.by_channel else ()
    return GraphOperand(index, make, channels, None if variable is None else variable.key)


def _output_channels(context: OpContext, at: OperandPlace, index: int) -> tuple[int, ...]:
    keys = keys_of(context)
    if at.side == "input" and keys.get("roles", {}).get("weight") == index and "weight_layout" in keys:
        layout = keys["weight_layout"]
        return tuple(i for i, letter in enumerate(layout) if letter == "O" or (letter in "IM" and "M" in layout))
    raise Error(
        f"[quantization] {at.side} {at.position!r} of {context.op.name} is not known to be a weight, and by_channel=True "
        "is a range for each output channel of a weight"
    )
