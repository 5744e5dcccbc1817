"""Origins: the operators of other code from which on it computes something else.

Code that computes the same by other operators has results that the reference has, too, perhaps in another order, repeated
or with the other sign. Where operators that both have get something else, the way back leads through results that the
reference does not have, to the first one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from amanda.toolkit.evidence import counted
from amanda.toolkit.frames import line_of_code

from . import values
from .matching import Matching
from .order import MOST, Order, order_of
from .record import DamagedRecord, Execution, Record, Station
from .reshaped import reshaped
from .texts import dtype_in, is_telling, tensors_in
from .tolerances import Difference, Tolerances

Spread = tuple[float, ...]

_PARTS = 16
_RTOL = 1e-4  # of two ways to compute the same; more for dtypes with fewer bits
_REPEATED = 64  # times that elements may be repeated
_MOST_RESULTS = 100_000
_SHOWN = 4  # lines of a way


@dataclasses.dataclass(frozen=True, eq=False)
class _Made:
    """A run of an operator that only this run has, or of a view of what one made."""

    station: Station
    read: tuple[str, ...]  # texts of tensors
    spreads: tuple[Spread, ...]  # of its results; () of views, and of masks that are true, or false, everywhere
    sizes: tuple[int, ...]  # of its results, in elements
    numbers: tuple[float | None, ...]  # each result that has one element
    orders: tuple[Order, ...] = ()  # of those that have more


@dataclasses.dataclass(frozen=True)
class _Moved:
    """The first operator of both runs that got something else from them."""

    station: Station
    read: tuple[str, ...]
    max_abs: float | None


class Origins:
    """Notes the operators that only this run has, until one that both runs have gets something else from them."""

    def __init__(self, record: Record, matching: Matching) -> None:
        self._record, self._matching = record, matching
        self._by_result: dict[str, _Made] = {}
        self._numbers: dict[object, int] = {}  # of operators, in order
        self._sizes: set[int] = set()  # of results, in elements
        self._moved: _Moved | None = None
        self._agreeing: set[object] = set()  # operators of both runs that read their results
        self._last: _Made | None = None  # if no operator of both runs has run since
        self._read: set[str] = set()  # results that an operator has read, but for views

    def add(
        self, station: Station, inputs: Sequence[str], outputs: Sequence[str], result: Callable[[int], Any]
    ) -> None:
        if self._moved is not None or station.backward_op:
            return
        # Later runs are left out, but for a view of a view, as in ``x[0, 0]``.
        is_next = station.is_view and self.made(inputs) and len(self._by_result) < _MOST_RESULTS
        if station.id in self._numbers and not is_next:
            return
        self._numbers.setdefault(station.id, len(self._numbers))
        made = (_telling_spread(text, result(i)) for i, text in enumerate(outputs))
        spreads = () if station.is_view else tuple(filter(None, made))
        if spreads:
            self._sizes.update(filter(None, map(_elements, outputs)))
        sizes = tuple(map(_elements, outputs))
        numbers = () if station.is_view else tuple(_number(result(i)) if n == 1 else None for i, n in enumerate(sizes))
        orders = () if station.is_view else tuple(filter(None, (order_of(result(i)) for i in range(len(outputs)))))
        one = _Made(station, _telling(inputs), spreads, sizes, numbers, orders)
        if outputs and reads_values(station):
            self._note_read(one.read)
        if not station.is_view:
            self._last = one if spreads and one.read else None
        self._by_result.update((text, one) for text in _telling(outputs) if text not in self._by_result)

    def made(self, inputs: Sequence[str]) -> bool:
        """True if such an operator, or a view, has made one of these tensors."""
        return any(text in self._by_result for text in _telling(inputs))

    def compared(
        self, station: Station, inputs: Sequence[str], difference: Difference | None, *, has_results: bool = True
    ) -> None:
        """An operator that both runs have. `difference`: of its results, because of what it reads."""
        if not self._by_result or self._moved is not None or station.backward_op or station.is_view:
            return
        self._last = None
        read = _telling(inputs)
        if has_results and reads_values(station):
            self._note_read(read)
        if difference is not None:
            self._moved = _Moved(station, read, difference.max_abs)
        elif self.made(inputs) and reads_values(station):
            self._agreeing.add(station.id)

    def _note_read(self, read: Iterable[str]) -> None:
        todo = list(read)
        while todo:
            text = todo.pop()
            if text not in self._read:
                self._read.add(text)
                made = self._by_result.get(text)
                todo += made.read if made is not None and made.station.is_view else ()

    @property
    def open_end(self) -> Station | None:
        """The first operator with a result that only this run has, that no operator has read, and that is not known to be
        in the reference; None if there is none."""
        unread = (made for text, made in self._by_result.items() if text not in self._read and not made.station.is_view)
        for made in dict.fromkeys(unread):
            is_known = (
                self._is_readable and self._is_known(made) and self._has_numbers(made) and self._is_in_order(made)
            )
            if not is_known:
                return made.station
        return None

    @property
    def open_end_of_reference(self) -> Station | None:
        """The same of the reference: with a result that no operator there has read, and whose elements no operator has that
        only this run has."""
        stations, known = self._record.stations, self._record.executions
        views = {text: execution.inputs for i, execution in known if stations[i].is_view for text in execution.outputs}
        todo = [
            text
            for i, execution in known
            if reads_values(stations[i]) and execution.outputs
            for text in execution.inputs
        ]
        read: set[str] = set()
        while todo:
            for text in tensors_in(todo.pop()):
                if text not in read:
                    read.add(text)
                    todo += views.get(text, ())
        made = dict.fromkeys(self._by_result.values())
        for i, execution in self._lone_of_reference():
            for k, text in enumerate(execution.outputs):
                if text not in read and not self._is_made(self._record.result(execution, k), made):
                    return stations[i]
        return None

    def _lone_of_reference(self) -> Iterator[tuple[int, Execution]]:
        """First runs, as are known of those of this run."""
        matched = set(self._matching.counts_of_reference())
        for i, execution in self._matching.comparable:
            station = self._record.stations[i]
            if i not in matched and not station.backward_op and not station.is_view:
                matched.add(i)
                yield i, execution

    def _is_made(self, array: Any, made: Iterable[_Made]) -> bool:
        number, order = _number(array), order_of(array)
        if number is not None:
            return any(_is_close(number, one) for by in made for one in by.numbers if one is not None)
        return order is not None and any(order.is_like(one, _rtol(array)) for by in made for one in by.orders)

    def _is_in_order(self, made: _Made) -> bool:
        """The reference has such results with the elements in the same order, and with the same signs."""
        return all(
            any(order.is_like(one, rtol) for one, rtol in self._orders_of(order.length)) for order in made.orders
        )

    @functools.cache  # noqa: B019  # as many as sizes of last results
    def _orders_of(self, count: int) -> list[tuple[Order, float]]:
        found = (
            self._record.result(execution, k)
            for i, execution in self._record.executions
            if not self._record.stations[i].backward_op
            for k, text in enumerate(execution.outputs)
            if _elements(text) in (count, count // 2)  # of complex numbers
        )
        return [(order, _rtol(array)) for array in found if (order := order_of(array)) is not None]

    def _has_numbers(self, made: _Made) -> bool:
        if len(made.spreads) + sum(number is not None for number in made.numbers) < len(made.sizes):
            return False  # too large, or a mask
        known = self._numbers_of_reference
        return all(any(_is_close(one, other) for other in known) for one in made.numbers if one is not None)

    @functools.cached_property
    def _numbers_of_reference(self) -> list[float]:
        found = (
            _number(self._record.result(execution, k))
            for i, execution in self._record.executions
            if not self._record.stations[i].backward_op
            for k, text in enumerate(execution.outputs)
            if _elements(text) == 1
        )
        return [number for number in found if number is not None]

    @property
    def agreement(self) -> str:
        """The operators of both runs that read what other code has computed, as a sentence; "" if one gets something
        else, or there are none."""
        if self._moved is not None:
            return ""
        if not self._agreeing:
            same = "what was compared agrees; up to rounding, the reference has what only this run's operators compute"
            return same if self._by_result and self.open_end is None else ""
        count = counted(len(self._agreeing), "operator")
        return f"what was compared agrees; up to rounding, also {count} that read results of these"

    @property
    def text(self) -> str:
        """Where this run begins to compute something else, and what that leads to, in sentences; "" if to nothing."""
        if self._moved is None:
            return ""
        moved = self._moved
        size = "" if moved.max_abs is None else f" by up to {moved.max_abs:.4g}"
        first, way = self._way
        if first is None:
            nearest = self._nearest(moved.read)
            reads = ", ".join(at(one.station) for one in nearest)
            if not reads:  # views alone
                views = dict.fromkeys(
                    at(self._by_result[text].station) for text in moved.read if text in self._by_result
                )
                of = f": it reads {', '.join(views)}" if views else ""
                return f"what only one of the runs has moves {at(moved.station)}, which both have,{size}{of}"
            known = "the reference has such elements, perhaps in another order"
            if not all(map(self._may_be_in_reference, nearest)):
                known = "the reference has no result of that size to compare with"
            return (
                f"operators that only this run has move {at(moved.station)}, which both have,{size}: it reads {reads}; "
                f"{known}"
            )
        lines = list(dict.fromkeys(line_of_code(one.source) for one in way))
        more = len(lines) - _SHOWN
        shown = ", ".join(lines[:_SHOWN]) + (f" and {counted(more, 'more line')}" if more > 0 else "")
        through = f" through {shown}" if lines else ""
        leads = f"that leads{through} to {at(moved.station)}, which both have, and moves it{size}"
        return f"{self._begins(first)}\n{leads}"

    @property
    def end(self) -> str:
        """The same, where both runs end with operators that the other one does not have. "" if the last results agree."""
        last = self._end
        if last is None:
            return ""
        behind = [last, *self._behind(last.read)]
        first, _ = self._way_to(behind, has_other_size=not self._may_be_in_reference(last))
        return "" if first is None else self._begins(first)

    @property
    def end_agreement(self) -> str:
        """There: that the last results agree, as a sentence; "" if they do not, or are not known."""
        last = self._end
        if last is None or not self._is_known(last):
            return ""
        result = f"the last result, of {at(last.station)}"
        return f"what was compared agrees; up to rounding, the reference has the elements of {result}"

    @property
    def _end(self) -> _Made | None:
        return self._last if self._moved is None and self._is_readable else None

    def _begins(self, first: _Made) -> str:
        begins = f"this run computes something else from {at(first.station)} on: its result is nowhere in the reference"
        return "\n".join(filter(None, [begins, reshaped(self._record, first.read)]))

    @functools.cached_property
    def _way(self) -> tuple[_Made | None, list[Station]]:
        assert self._moved is not None
        read = self._moved.read
        has_other_size = not all(_elements(text) in self._reference_sizes for text in read)
        return self._way_to(self._behind(read), has_other_size=has_other_size or self._moved.max_abs is None)

    def _way_to(self, behind: Sequence[_Made], *, has_other_size: bool) -> tuple[_Made | None, list[Station]]:
        """The first of these operators whose result the reference has nowhere, though it has what that one reads; and the
        others without such a result. `has_other_size`: so has what they lead to."""
        if not self._is_readable:
            return None, []
        unknown = [made for made in behind if not self._is_known(made)]
        # One result of this run, as of a layer for queries, keys and values, may be several in the reference.
        other = [made for made in unknown if self._may_be_in_reference(made)]
        if has_other_size:
            other = other or unknown
        firsts = [made for made in other if not any(one in other for one in self._behind(made.read))]
        if not firsts:
            return None, []
        first = min(firsts, key=self._order)
        way = [made for made in other if made.station.source != first.station.source]
        return first, [made.station for made in sorted(way, key=self._order)]

    @property
    def _is_readable(self) -> bool:
        try:
            return self._of_reference is not None
        except DamagedRecord:  # it was said, or the next look says so
            return False

    def _order(self, made: _Made) -> int:
        return self._numbers[made.station.id]

    def _nearest(self, read: Iterable[str]) -> list[_Made]:
        """The operators that made these tensors, behind views."""
        found: dict[_Made, None] = {}
        todo = list(read)
        while todo:
            made = self._by_result.get(todo.pop())
            if made is not None and made.spreads:
                found[made] = None
            elif made is not None:
                todo += made.read
        return list(found)

    def _behind(self, read: Iterable[str]) -> list[_Made]:
        """The operators on the way to these tensors, up to those whose results the reference has; without views."""
        found: dict[_Made, None] = {}
        seen: set[_Made] = set()
        todo = list(read)
        while todo:
            made = self._by_result.get(todo.pop())
            if made is None or made in seen:
                continue
            seen.add(made)
            if made.spreads:
                found[made] = None
            if not made.spreads or not self._is_known(made):
                todo += made.read
        return list(found)

    @functools.cache  # noqa: B019  # as many as there are operators
    def _is_known(self, made: _Made) -> bool:
        """True if the reference has these results."""
        return all(bool(self._like(spread).any()) for spread in made.spreads)

    def _like(self, spread: Spread) -> Any:
        known, tolerances = self._of_reference
        given = np.array(spread)
        typical = given[_PARTS // 4]  # of small elements, which are as far off as others; masks make others huge
        with np.errstate(invalid="ignore", over="ignore"):  # of infinities
            allowed = tolerances[:, None] * (np.maximum(known, given) + typical)
            close = np.isfinite(known) & np.isfinite(given) & (np.abs(known - given) <= allowed)
        return (close | (known == given) | (np.isnan(known) & np.isnan(given))).all(1)

    def _may_be_in_reference(self, made: _Made) -> bool:
        return not self._reference_sizes.isdisjoint(made.sizes)

    @functools.cached_property
    def _reference_sizes(self) -> set[int]:
        stations = self._record.stations
        executions = (one for i, one in self._record.executions if not stations[i].backward_op)
        return {_elements(text) for execution in executions for text in execution.outputs}

    @property
    def _of_reference(self) -> tuple[Any, Any]:
        return self._of_sizes(frozenset(self._sizes))

    @functools.cache  # noqa: B019  # as often as the answer is asked for while the program runs
    def _of_sizes(self, sizes: frozenset[int]) -> tuple[Any, Any]:
        """The spreads of the results of the reference's forward operators that may have the elements of results of these
        sizes, each as often; and the tolerance of each."""
        found: dict[str, tuple[Spread, float]] = {}
        for i, execution in self._record.executions:
            if self._record.stations[i].backward_op:
                continue
            for k, text in enumerate(execution.outputs):
                if (
                    text not in found
                    and _may_be_like(text, sizes)
                    and (spread := spread_of(self._record.result(execution, k)))
                ):
                    found[text] = spread, max(_RTOL, Tolerances(close=True).of([text.split()[1].partition("[")[0]])[0])
        known = [spread for spread, _ in found.values()]
        return np.array(known).reshape(-1, _PARTS + 1), np.array([rtol for _, rtol in found.values()])


def spread_of(array: Any) -> Spread | None:
    """The sizes of elements at equal steps through all, sorted: repeated elements, another order and other signs do not
    change it. None if there are none, or too many."""
    sizes = None if array is None else values.sizes(array)
    if sizes is None or not 1 < len(sizes) <= MOST:
        return None
    ordered = np.sort(sizes)
    positions = [len(ordered) * part // _PARTS for part in range(_PARTS)]
    return (*(float(ordered[position]) for position in positions), float(ordered[-1]))


def _number(array: Any) -> float | None:
    """Its only element."""
    elements = None if array is None else values.elements(array)
    return float(elements[0]) if elements is not None and len(elements) == 1 else None


def _rtol(array: Any) -> float:
    """More for dtypes with fewer bits."""
    return max(_RTOL, Tolerances(close=True).of([values.values_of(array).dtype_of(array)])[0])


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_RTOL, abs_tol=_RTOL**2)


def reads_values(station: Station) -> bool:
    """False for views, and for operators to which the shape and the dtype of an operand are all, such as `ones_like`."""
    op = station.operator.rpartition("::")[2].partition(".")[0]
    return not station.is_view and not op.endswith("_like") and not op.startswith("new_")


def _may_be_like(text: str, sizes: Iterable[int]) -> bool:
    count = _elements(text)
    return any(
        max(count, one) <= _REPEATED * min(count, one) and not max(count, one) % min(count, one) for one in sizes
    )


def _telling_spread(text: str, array: Any) -> Spread | None:
    """None for masks that are the same everywhere, too: most are alike, whatever they were made from."""
    spread = spread_of(array)
    return None if spread is not None and dtype_in(text) == "bool" and spread[0] == spread[-1] else spread


def _elements(text: str) -> int:
    """The number of elements of a tensor, by its text."""
    sizes = text.partition("[")[2].partition("]")[0]
    return math.prod(map(int, sizes.split(", "))) if sizes.replace(", ", "").isdigit() else 1


def _telling(inputs: Iterable[str]) -> tuple[str, ...]:
    return tuple(filter(is_telling, (tensor for text in inputs for tensor in tensors_in(text))))


def at(station: Station) -> str:
    module = f" in {station.module_path}" if station.module_path else ""
    return f"{station.backward_op or station.operator}{module} at {line_of_code(station.source)}"
