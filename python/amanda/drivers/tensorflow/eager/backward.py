"""Backward operators of eager operators: those that run while TensorFlow calls the gradient function of an operator.

A tape hands a gradient function the very tuple of attributes that the operator's callback got: that is the link, and it
is exact. Operators that run in `tape.gradient` outside of gradient functions add gradients up, or begin them. They do
not count as operators.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from amanda import _core
from amanda.drivers.tensorflow.eager import operands as eager_operands
from amanda.drivers.tensorflow.eager.operands import OperatorType
from amanda.drivers.tensorflow.view import places

_HELD_BY_US = 3  # references to a tuple that only `Links` has, while it looks


class Ran(NamedTuple):
    """An operator that ran in a gradient function."""

    type: OperatorType
    inputs: Sequence[Any]
    attributes: Sequence[Any]
    outputs: Sequence[Any]


class Forward(NamedTuple):
    """A forward operator's run that a tape recorded."""

    type: OperatorType
    place: places.Place
    state: _core.RunState


class Links:
    """Forward operators by the attributes that tapes hold."""

    def __init__(self) -> None:
        self._forward: dict[int, tuple[Any, Forward]] = {}  # by the tuple's address, with the tuple
        self._limit = 1024

    def add(self, attributes: Any, forward: Forward) -> None:
        if not attributes:
            return  # all empty tuples are one
        if len(self._forward) >= self._limit:
            self._forget()
        self._forward[id(attributes)] = attributes, forward

    def find(self, attributes: Any) -> Forward | None:
        found = self._forward.get(id(attributes))
        return found[1] if found is not None and found[0] is attributes else None

    def clear(self) -> None:
        self._forward.clear()

    def _forget(self) -> None:
        """Drops those that no tape holds any more."""
        for key in list(self._forward):
            attributes = self._forward[key][0]
            if sys.getrefcount(attributes) <= _HELD_BY_US:
                del self._forward[key]
        self._limit = max(1024, 2 * len(self._forward))


class Gradient(NamedTuple):
    """One call of a gradient function, after it has returned."""

    forward: Forward
    attributes: Sequence[Any]  # of the forward operator
    inputs: Any  # of the forward operator; not a sequence if the tape does not hold them
    outputs: Any
    incoming: Sequence[Any]
    returned: Any

    def forward_operands(self) -> tuple[list[Any], list[Any]]:
        """The operands of the forward operator, by position; None where the tape holds none."""
        return self._inputs(self.inputs), self._outputs(self.outputs)

    def grad_outputs(self, ran: Ran) -> list[Any]:
        """One per output of the forward operator: the gradient that comes in, if this operator takes it."""
        return _folded(self._outputs([_if_among(gradient, ran.inputs) for gradient in self.incoming]))

    def grad_inputs(self, ran: Ran) -> list[Any]:
        """One per input of the forward operator: the gradient that goes out, if this operator gives it."""
        returned = self.returned if isinstance(self.returned, list | tuple) else [self.returned]
        return _folded(self._inputs([_if_among(gradient, ran.outputs) for gradient in returned]))

    def _inputs(self, flat: Sequence[Any]) -> list[Any]:
        return self.forward.type.grouped_inputs(flat, self.attributes) or [None] * len(self.forward.type.inputs)

    def _outputs(self, flat: Sequence[Any]) -> list[Any]:
        return self.forward.type.grouped_outputs(flat, self.attributes) or [None] * len(self.forward.type.outputs)


def _if_among(gradient: Any, operands: Sequence[Any]) -> Any:
    return gradient if any(operand is gradient for operand in operands) else None


def _folded(operands: list[Any]) -> list[Any]:
    """A list of which nothing is there is not there itself."""
    return [
        None if isinstance(operand, list) and all(member is None for member in operand) else operand
        for operand in operands
    ]


def arrays_for(
    tap: _core.Tap, selected: Sequence[Any], shown: Sequence[Any] = ()
) -> tuple[list[Any], list[Any]] | None:
    """The arrays that a tap gets of its own side, and of the other side. None if it selects operands, and none of them
    exists."""
    mine = eager_operands.arrays_of(selected, tap.selects)
    if any(tap.selects(position) for position in range(len(selected))) and all(array is None for array in mine):
        return None
    return mine, eager_operands.arrays_of(shown, tap.shows_input)
