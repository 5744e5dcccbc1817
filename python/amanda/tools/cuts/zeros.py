"""Zeros: which gradients of TensorFlow's variables are zero, and at which operator they become so."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frameworks import shows_after_run

from .cut import Cut
from .eager_values import Step, members
from .reasons import REASONS, of_zero_in_tensorflow

if TYPE_CHECKING:
    from amanda.toolkit.tensorflow import Role, Stop


class Zeros:
    """Reads the gradients of variables, and the one that comes into each operator, until one is not zero.

    An operator makes a gradient zero if it gets one that is not zero, and gives zeros. For a variable it is the first such
    operator on the way to the loss.
    """

    def __init__(self) -> None:
        self._arrives: dict[int | None, bool] = {}  # by operator: a gradient that is not zero has come in
        self._leaves: dict[
            tuple[int | None, int], bool
        ] = {}  # by operator and input: one that is not zero has come out
        self._gradients: dict[object, bool] = {}  # by variable: one was not zero
        self._readers: dict[tuple[int, str], int | None] = {}  # by role and symbol: the operator where it is read
        self._first: dict[int | None, int | None] = {}  # by operator: the backward operator whose gradient is read
        self._missing: dict[object, set[str]] = {}  # by variable: parts of its gradient that no operator shows

    def reset(self) -> None:
        """Forgets what was read."""
        self._arrives.clear()
        self._leaves.clear()
        self._gradients.clear()

    def is_zero(self, variable: object) -> bool | None:
        """True if all gradients of a variable were; None if that is not known."""
        known = self._gradients.get(variable)
        if known is None or (not known and self._missing.get(variable)):
            return None
        return not known

    # ---- operators --------------------------------------------------------------------------------------------------

    def see(self, context: OpContext) -> None:
        """An analysis routine of forward operators, with their results: one may take a sum of gradients."""
        if shows_after_run(context):
            return
        self._read_roles(context, context.inputs, context.insert_before_op)
        self._read_roles(context, context.outputs, context.insert_after_op)

    def analyze_backward(self, context: OpContext) -> None:
        """An analysis routine of backward operators."""
        position = next((i for i, one in enumerate(context.grad_outputs) if one is not None), None)
        if position is not None:
            for role in self._sparse_roles(context, context.grad_outputs[position]):
                context.insert_before_backward_op(self._look, [position], role=role, element=None)
            first = self._first.setdefault(context.op_id, context.backward_op_id)
            if first == context.backward_op_id:
                context.insert_before_backward_op(self._arrived, [position], op=context.op_id)
        for position, one in enumerate(context.grad_inputs):
            if one is not None:
                context.insert_after_backward_op(self._left, [position], op=context.op_id, position=position)
        if not shows_after_run(context):
            self._read_roles(context, context.grad_inputs, context.insert_after_backward_op)

    def _read_roles(self, context: OpContext, operands: Sequence[Any], insert: Callable[..., object]) -> None:
        """Gradients of variables are read where an operator makes one, or takes one first."""
        from amanda.toolkit.tensorflow import roles_of

        op_id = context.backward_op_id if context.is_backward() else context.op_id
        for position, operand in enumerate(operands):
            is_list = isinstance(operand, list | tuple)
            for i, symbol in enumerate(operand if is_list else [operand]):
                for role in [*roles_of(symbol), *self._roles_of_sums(symbol)]:
                    reader = self._readers.setdefault((role.number, symbol.name), op_id)
                    if role.kind == "gradient" and reader == op_id:
                        insert(self._look, [position], role=role, element=i if is_list else None)

    def _roles_of_sums(self, symbol: Any) -> Iterator[Role]:
        """Those of sums of gradients that this one is a part of: no operator that tools see makes the sum."""
        from amanda.toolkit.tensorflow import roles_of, summands_of

        for user in () if symbol is None else symbol.consumers():
            for total in user.outputs:
                parts = [part.name for part in summands_of(total)]
                if symbol.name not in parts:
                    continue
                for role in roles_of(total):
                    if role.kind == "gradient" and role.variable is not None:
                        self._missing.setdefault(role.variable.key, set(parts)).discard(symbol.name)
                        yield role
                yield from self._roles_of_sums(total)

    def _sparse_roles(self, context: OpContext, symbol: Any) -> Iterator[Role]:
        """Those of slices, which no position of a backward operator has: they are this gradient, or another shape of it."""
        from amanda.toolkit.tensorflow import roles_of

        if shows_after_run(context) or isinstance(symbol, list | tuple):
            return
        shaped = [one for user in symbol.consumers() if user.type == "Reshape" for one in user.outputs]
        for role in [role for one in [symbol, *shaped] for role in roles_of(one)]:
            reader = self._readers.setdefault((role.number, symbol.name), context.backward_op_id)
            if role.kind == "gradient" and role.is_sparse and reader == context.backward_op_id:
                yield role

    def _arrived(self, gradient: Any, op: int | None) -> None:
        if not self._arrives.get(op, False):
            self._arrives[op] = any(one is not None and one.any() for one in members([gradient]))

    def _left(self, gradient: Any, op: int | None, position: int) -> None:
        if not self._leaves.get((op, position), False):
            self._leaves[op, position] = any(one is not None and one.any() for one in members([gradient]))

    def _look(self, value: Any, role: Role, element: int | None) -> None:
        self.read(role, value if element is None else value[element])

    def read(self, role: Role, array: Any) -> None:
        """The gradient of a variable; of one that is sparse, its slices."""
        if role.kind == "gradient" and role.variable is not None and array is not None:
            key = role.variable.key
            if not self._gradients.get(key, False):
                self._gradients[key] = bool(array.any())

    # ---- the operator that made it zero -----------------------------------------------------------------------------

    def cuts_of(self, targets: Sequence[Any], variable: object) -> list[Cut]:
        """The operators that made the gradient of a variable in a graph zero."""
        from amanda.toolkit.tensorflow import ends_where

        found = ends_where(targets, variable, self._is_end)
        return _without_repeats(self._cut(one, variable) for one in found)

    def _cut(self, one: Stop, variable: object) -> Cut:
        cut = made_zero(place_of(one.operator, one.place), one.last and place_of(*one.last))
        if cut.reason == "factor" and any(self._gradients.get(key, False) for key in one.variables - {variable}):
            return dataclasses.replace(cut, reason="starts at zero", text=REASONS["starts at zero"], is_meant=True)
        return cut

    def _is_end(self, op_type: str, op: int | None, position: int) -> bool | None:
        if _is_flat(op_type):
            return True
        if not self._arrives.get(op, False):
            return None
        return self._leaves.get((op, position)) is False

    def eager_cuts_of(self, leading: Sequence[Step], users: Callable[[Step], Sequence[tuple[Step, int]]]) -> list[Cut]:
        """The same in eager code. `leading` are the steps that read it; `users` take a result of a step, at a position."""

        def found() -> Iterator[Cut]:
            waiting = collections.deque[tuple[Step, int, Place | None]]((step, 0, None) for step in leading)
            seen: set[tuple[int, int]] = set()
            while waiting:
                step, position, last = waiting.popleft()
                place = step.place
                if (id(step), position) in seen or (place is not None and step.reason):
                    continue
                seen.add((id(step), position))
                is_end = None if place is None else self._is_end(place.name, place.op_id, position)
                if is_end is None:
                    waiting.extend((*use, place or last) for use in users(step))
                elif is_end and place is not None:
                    yield made_zero(place, last)

        return _without_repeats(found())


def _is_flat(op_type: str) -> bool:
    """True if TensorFlow returns zeros, and takes no gradient."""
    return of_zero_in_tensorflow(op_type.rpartition("::")[2]) == "zero derivative"


def place_of(operator: str, place: Any) -> Place:
    """An operator of a graph."""
    return Place(place.id, f"tensorflow::{operator}", place.module_path, place.source)


def made_zero(end: Place, last: Place | None) -> Cut:
    """The gradient becomes zero at this operator."""
    reason = of_zero_in_tensorflow(end.name.rpartition("::")[2])
    return Cut(reason, REASONS[reason], last, end)


def _without_repeats(cuts: Iterable[Cut]) -> list[Cut]:
    return list({(cut.reason, cut.end): cut for cut in cuts}.values())
