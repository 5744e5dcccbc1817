"""Weights of operators in graphs, and the variables that they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from amanda import Error, OpContext
from amanda.toolkit.operators import WEIGHTED, VariableValue, variable_of
from amanda.tools.mapping import keys_of


@dataclasses.dataclass(frozen=True)
class GraphWeight:
    """An operator's weight. It keeps no variable alive."""

    position: int  # among the operator's inputs
    layout: str  # "HWIO"
    shape: tuple[int | None, ...]
    value: VariableValue | None  # None if it is computed

    is_part = False  # an operator that indexes a variable computes a value

    @property
    def dim(self) -> int:
        """The dimension of input channels."""
        return self.layout.index("I")

    @property
    def key(self) -> object:
        """Equal for operators with the same weight; None if that is not known."""
        if self.value is None or not self.value.in_order:
            return None
        return self.value.key, self.layout, self.shape

    @property
    def name(self) -> str:
        return "a weight without a name" if self.value is None else str(self.value.name)

    def mask(self, get_mask: Callable[[Any, int], Any], weight: Any) -> Any:
        """The mask by `get_mask`. A depthwise convolution sums over no channels, as one with groups of a single channel."""
        if "M" not in self.layout:
            return get_mask(weight, self.dim)
        height, width, channels, multiplier = weight.shape
        return get_mask(weight.reshape(height, width, 1, channels * multiplier), 2).reshape(weight.shape)

    def current(self) -> Any:
        """The weight as it is now; None if it cannot be read."""
        variable = self.variable()
        if variable is None or self.value is None or not self.value.in_order or variable.shape.rank != len(self.layout):
            return None
        return variable.numpy()

    def variable(self) -> Any:
        """The framework's variable; None if it is not known, or no longer exists."""
        return None if self.value is None or self.value.variable is None else self.value.variable()


def find(context: OpContext) -> GraphWeight | None:
    """The operator's weight; None if it has none that can be pruned.

    Raises:
        amanda.Error: it is not known which input is the weight.
    """
    keys = keys_of(context)
    if keys.get("op_type") not in WEIGHTED:
        raise Error(f"[pruning] which input of {context.op.name} is its weight is not known")
    layout = keys.get("weight_layout", "")
    if len(layout) < 2:  # a product of activations, or a vector
        return None
    position = keys["roles"]["weight"]
    weight: Any = context.inputs[position]
    return GraphWeight(position, layout, tuple(weight.shape), variable_of(weight))
