"""Site: an expression at one operator of the program, and its values there."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

from amanda.toolkit import Place, locks

from .expression import Expression
from .rows import GroupBy
from .values import NotANumber, Values, merged

Key: TypeAlias = tuple[Expression, Place, int | None]
"""The key of a row; the last item is the step."""


class Site:
    """An expression at one operator of the program."""

    def __init__(self, expression: Expression, place: Place, keeps: bool, by_step: bool, every: int) -> None:
        self.expression, self.place = expression, place
        self._keeps, self._by_step, self._every = keeps, by_step, every
        self._lock = locks.lock()  # guards the fields below
        self._runs = itertools.count()
        self._values: dict[int, Values] = {}  # by step, or all under 0
        self._errors: dict[str, None] = {}
        self._unwritten = 0  # runs in which the expression was about memory without values

    def evaluate_where_unwritten(self, *operands: Any) -> None:
        """The same, where operands may be in memory that has no values yet."""
        self._evaluate_with_stand_ins(operands, False)

    def evaluate_allocated(self, *operands: Any) -> None:
        """The same, where operands are memory without values."""
        self._evaluate_with_stand_ins(operands, True)

    def _evaluate_with_stand_ins(self, operands: Sequence[Any], are_unwritten: bool) -> None:
        from . import stand_in

        replaced = [stand_in.replaced(operand, is_unwritten=are_unwritten) for operand in operands]
        if all(new is old for new, old in zip(replaced, operands, strict=True)):
            self.evaluate(*operands)
            return
        value = None
        if "isinstance" not in self.expression.text:  # a stand-in is no tensor
            with contextlib.suppress(Exception):
                value = self.expression.function(*replaced)
        if isinstance(value, int | float):  # of shapes, dtypes and devices alone
            self.evaluate(*replaced)
            return
        with self._lock:
            self._unwritten += 1

    def evaluate(self, *operands: Any) -> None:
        """A routine: the value of the expression for these operands is added."""
        step = next(self._runs)
        if step % self._every:
            return
        failure: Exception | None = None
        try:
            value = self.expression.function(*operands)
        except Exception as error:
            failure = error
        with self._lock:
            key = step if self._by_step else 0
            values = self._values.get(key)
            if values is None:
                values = self._values[key] = Values(self._keeps)
            try:
                if failure is None:
                    values.add(value)
                    return
            except Exception as error:
                failure = error
            values.errors += 1
            self._errors[_text(failure)] = None

    def all_values(self) -> list[tuple[int, Values]]:
        """Copies, with their steps."""
        with self._lock:
            return [(step, merged([values])) for step, values in self._values.items()]

    def unwritten(self) -> int:
        """The number of values that are missing because they would be those of memory without values."""
        with self._lock:
            return self._unwritten

    def error_texts(self) -> list[str]:
        with self._lock:
            return list(self._errors)

    def group(self, by: GroupBy, step: int, rank: int) -> Key:
        if by == "step":
            return self.expression, Place(None, str(step), "", ""), step
        place = Place(None, str(rank), "", "") if by == "rank" else self.place.group(by)
        return self.expression, place, None

    def reset(self) -> None:
        with self._lock:
            self._runs = itertools.count()
            self._values.clear()
            self._errors.clear()
            self._unwritten = 0


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, NotANumber) else f"{type(error).__name__}: {error}"
