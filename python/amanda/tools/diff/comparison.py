"""Comparison compares executions of operators with those of a record, and separates causes from consequences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from amanda.toolkit.arrays import REASONS

from . import lone, texts, values
from .changes import Change, changes_of
from .compared import Compared
from .consequences import Consequences
from .matching import Id, Matching
from .origins import Origins, at
from .record import Execution, Record, Station
from .rows import Kind, Row
from .tolerances import Difference, Tolerances
from .watching import Seen


@dataclasses.dataclass(eq=False)
class Cause:
    kind: Kind
    station: Station
    first_run: int
    output: int
    first: Any  # the Difference there
    note: str
    runs: set[tuple[Id, int]] = dataclasses.field(default_factory=set)
    max_abs: float | None = None
    max_rel: float | None = None
    ulps: tuple[float, float] | None = None  # of errors: the reference's, and this run's
    read: set[str] = dataclasses.field(default_factory=set)  # what the reference read instead
    arguments: str = ""  # of an input that differs: what differs besides

    def add(self, station: Station, run: int, found: Any) -> None:
        self.runs.add((station.id, run))
        self.max_abs = max((x for x in (self.max_abs, found.max_abs) if x is not None), default=None)
        self.max_rel = max((x for x in (self.max_rel, found.max_rel) if x is not None), default=None)

    def row(self) -> Row:
        station, found = self.station, self.first
        where = station.operator, station.backward_op, station.op_id, station.module_path, station.source
        at = len(self.runs), self.first_run, self.output
        what = found.dtype, found.shape, found.elements
        ulps = self.ulps or (None, None)
        return Row(self.kind, *where, *at, *what, self.max_abs, self.max_rel, self.note, *ulps)


class Comparison:
    """Compares executions as they come.

    Arguments:
        record: the reference.
        tolerances: of results.
        heal: results that differ are replaced by the reference's. Otherwise, operators that read them are distinguished
            from causes by the contents of these results.
    """

    def __init__(self, record: Record, tolerances: Tolerances, *, heal: bool) -> None:
        self._record, self._tolerances, self._heal = record, tolerances, heal
        self.matching = Matching(record)
        self.consequences = Consequences()
        self.causes: dict[Hashable, Cause] = {}
        self.compared = Compared()
        self.origins = Origins(record, self.matching)
        self._is_healing = heal  # in all that has run
        self.has_replaced = self.has_left = False  # results that differed
        self._tainted: set[tuple[int, int | None]] = set()  # runs of forward operators that saved other values
        self._moved_gradient: tuple[Station, float | None] | None = None  # the first, beyond rounding; its difference
        self._gradient: Hashable | None = None  # the source of the last gradient that follows from something
        self._unread: dict[tuple[int, int | None], str] = {}  # inputs of theirs that cannot be compared, in words

    def ran(
        self, station: Station, outputs: Sequence[str], seen: Seen, result: Callable[[int], Any]
    ) -> list[Any] | None:
        """One execution. `outputs`: texts of its results. `result(i)` is one on the CPU, or None. Returns what replaces the
        results.

        Raises:
            DamagedRecord: the reference's results cannot be read.
        """
        inputs = seen.inputs
        number, reference = self.matching.next(station, inputs)
        if reference is None:
            self.matching.add_lone(station, inputs, outputs)
            self.origins.add(station, inputs, outputs, result)
            sources = self._sources(inputs, station)
            self.consequences.readers.update(sources)
            self._follow(outputs, sources[0] if sources and station.is_view else ("lone", station.id), station)
            self._tainted.add((station.op_id, number))
            return None
        self.compared.add(station, outputs)
        if not station.backward_op and (hidden := self._hidden(station, seen)):
            self._unread[station.op_id, number] = hidden
        changes = changes_of(station, reference.inputs, inputs)
        if not outputs and not station.backward_op:
            self._got(station, number, seen, changes)
        if len(outputs) != len(reference.outputs):
            note = f"{len(outputs)} tensors instead of {len(reference.outputs)}"
            self._other_count(station, number, seen, outputs, _no_difference(note), changes)
            return None
        self._is_healing &= not seen.are_fixed or station.accumulates
        replaced: list[Any] = [None] * len(outputs)
        source: Hashable | None = None
        explained = False
        moved: Any = None  # the difference, beyond rounding, that follows from an operator that only this run has
        if not station.backward_op and any(change.comparable for change in changes):
            self._tainted.add((station.op_id, number))
        for i, (ours, theirs) in enumerate(zip(outputs, reference.outputs, strict=True)):
            if ours == theirs:
                continue
            tensor, other = result(i), self._stored(reference, i)
            known = tensor is not None and other is not None
            found = self._difference(tensor, other, ours, theirs, changes)
            if found is _EQUAL:
                continue
            if found is None and not known:
                self.compared.hide(is_view=seen.are_views)
            elif found is None:
                self.compared.tolerated += 1
            if found is not None and not explained:
                source, explained = self._explain(station, number, seen, i, found, changes), True
                if station.accumulates or self._is_of_other_code(source):
                    moved = self._difference(tensor, other, ours, theirs, changes, _CLOSE)
                    if moved is not None and station.backward_op and self._moved_gradient is None:
                        self._moved_gradient = station, moved.max_abs
                if station.backward_op:
                    self._gradient = source
                self._judge(source, seen, changes, tensor, other, i)
            if self._heal and not seen.are_fixed and known and tensor.shape == other.shape:
                replaced[i], self.has_replaced = other, True
                continue
            self.has_left |= seen.are_fixed
            if found is None or source is not None:
                self._follow([ours], source or ("tolerated",), station)
        is_another = moved is not None and moved.max_abs is None  # shapes differ: no counterpart
        is_view = station.is_view and (outputs != reference.outputs or self.origins.made(inputs))
        if is_view or is_another:
            self.origins.add(station, inputs, outputs, result)
        else:
            self.origins.compared(station, inputs, moved, has_results=bool(outputs))
        return replaced if any(value is not None for value in replaced) else None

    def rows(self) -> list[Row]:
        """The causes in order, then what only one of the runs has."""
        theirs = lone.of_reference(self._record, self.matching, heal=self._is_healing)
        found = []
        for cause in self.causes.values():
            backward = bool(cause.station.backward_op)
            sources = [theirs.source(tensor, backward=backward) for tensor in cause.read]
            if sources and None not in sources:  # the reference has it from an operator that this run does not have
                theirs.readers.update(sources)
                if cause.arguments:
                    found.append(dataclasses.replace(cause, kind="operator", note=cause.arguments).row())
            else:
                found.append(cause.row())
        causes = {op_id for op_id, _ in self._tainted}
        return found + lone.rows(self._record, self.matching, self.consequences, theirs, causes)

    @property
    def origin(self) -> str:
        """Where this run begins to compute something else by operators that only it has, in sentences; "" if nowhere."""
        return self.origins.text or (self.origins.end if self._reference_ends_alone else "")

    @property
    def agreement(self) -> str:
        """That what such operators have computed agrees, as a sentence; "" if it does not, or is not known to."""
        if self.origin or self._moved_gradient:
            return ""
        return self.origins.agreement or (self.origins.end_agreement if self._reference_ends_alone else "")

    @property
    def not_known(self) -> str:
        """The results of operators that only one run has, and that are not known to agree, and gradients that they move, in
        sentences; "" if there are none."""
        if self.origin:
            return ""
        found = []
        ends = {"this run": self.origins.open_end, "the reference": self.origins.open_end_of_reference}
        for which, end in ends.items():
            if end is not None:
                found.append(f"not known: what {at(end)} computes, which only {which} has, and no other operator reads")
        if self._moved_gradient:
            station, size = self._moved_gradient
            by = "" if size is None else f" by up to {size:.4g}"
            found.append(f"what only one of the runs has moves gradients{by}: first {at(station)}")
        return "\n".join(found)

    @property
    def agrees(self) -> bool:
        """True if both compute the same in other ways: no value is known to differ beyond rounding. Each result that only
        one run has is read by an operator, or the other run has its elements."""
        if not self.agreement or self.not_known:
            return False
        if not all(map(self._is_changed_view, self.causes.values())):
            return False
        reached, matched = {i for i, _ in self.matching.comparable}, self.matching.counts_of_reference()
        runs, lacks = self.matching.comparable_counts, self.matching.counterpart
        return not (
            any(self._record.stations[i].accumulates for i in reached - set(matched))
            or any(
                one.accumulates and lacks(one.id) is None and runs[one.id] for one in self.matching.stations.values()
            )
            or any(row.kind == "other count" for row in self.rows())
        )

    def _is_of_other_code(self, source: Hashable) -> bool:
        """True for what follows from an operator that only one run has, or from a view of another form."""
        cause = self.causes.get(source)
        is_lone = isinstance(source, tuple) and source[0] == "lone"
        return is_lone or (cause is not None and self._is_changed_view(cause))

    def _is_changed_view(self, cause: Cause) -> bool:
        return cause.station.is_view and cause.kind == "operator" and cause.max_abs is None

    @property
    def _reference_ends_alone(self) -> bool:
        """Its last operator that computes something has no counterpart, as at the end of a port. Programs that part have
        another answer."""
        computing = (i for i, _ in reversed(self.matching.comparable) if not self._record.stations[i].is_view)
        is_alone = next(computing, None) not in {None, *self.matching.counts_of_reference()}
        return is_alone and self.matching.parting() is None

    def _got(self, station: Station, run: int, seen: Seen, changes: Sequence[Change]) -> None:
        """An operator without results, such as a write to a variable: what it gets is all that can differ."""
        tensors = [change for change in changes if change.pairs]
        if tensors:
            self._explain(station, run, seen, 0, _no_difference(""), tensors)
        for written in (ours for change in tensors for _, ours in change.pairs):
            self.consequences.accumulate(written)

    def _other_count(
        self, station: Station, run: int, seen: Seen, outputs: Sequence[str], found: Any, changes: Sequence[Change]
    ) -> None:
        """It returned more tensors than in the reference, or fewer: because of what it reads, or it is a cause itself."""
        source = next(iter(self._sources(seen.inputs, station)), None)
        if source is None or not all(change.pairs for change in changes):
            source = ("cause", station.id)
            if not self._reads_saved(station, seen.forward):
                self._add(station, run, 0, found, "operator", found.note)
        else:
            self.consequences.readers[source] += 1
            if self._is_of_other_code(source):
                self.origins.compared(station, seen.inputs, found)
        self._follow(outputs, source, station)

    def accumulates(self, gradient: str) -> None:
        self.consequences.accumulate(gradient)

    def _stored(self, reference: Execution, i: int) -> Any:
        return self._record.result(reference, i)

    def _difference(
        self,
        tensor: Any,
        other: Any,
        ours: str,
        theirs: str,
        changes: Sequence[Change],
        tolerances: Tolerances | None = None,
    ) -> Any:
        """The difference of two results. None if it is within the tolerances, as far as it is known."""
        dtypes = sorted(set().union(*(change.dtypes for change in changes)))
        if tensor is None or other is None:
            if dtypes or texts.dtype_in(ours) != texts.dtype_in(theirs):
                return None  # hashes can't show it
            shapes = texts.without_hash(ours), texts.without_hash(theirs)
            note = "" if shapes[0] == shapes[1] else " instead of ".join(shapes).replace("tensor ", "")
            return _no_difference(note)
        known = values.values_of(tensor)
        if known.is_equal(tensor, other):
            return _EQUAL  # NaNs
        return known.difference(tensor, other, tolerances or self._tolerances, dtypes)

    def _explain(
        self, station: Station, run: int, seen: Seen, output: int, found: Any, changes: Sequence[Change]
    ) -> Hashable | None:
        """Finds the reason why a result differs. Adds a cause, unless it is a consequence. Returns the cause that it
        follows from."""
        if self._reads_saved(station, seen.forward):
            return ("saved", station.op_id)
        if not station.backward_op:
            self._tainted.add((station.op_id, run))
        sources: list[Hashable] = []
        arguments: list[Change] = []  # that are no tensors
        others: list[Change] = []
        for change in changes:
            pairs = change.pairs if change.is_number else change.comparable
            known = [self.consequences.source(ours, backward=bool(station.backward_op)) for _, ours in pairs]
            sources += [source for source in known if source is not None]
            if not change.pairs or (change.is_number and None in known):
                arguments.append(change)
            elif None in known:
                others.append(change)
        for source in sources:
            self.consequences.readers[source] += 1
            cause = self.causes.get(source)
            if cause is not None and cause.kind == "input" and cause.station.id == station.id:
                cause.add(station, run, found)  # it reads the same once more
        if others and seen.are_views:
            return None  # the operator that computes with it is compared
        if others:
            return self._add_inputs(station, run, output, found, others, arguments)
        if station.backward_op and seen.are_fixed and self._gradient is not None and set(seen.inputs) == {"None"}:
            return self._gradient  # it takes what another operator of the gradient function made, which is not shown
        if sources and not arguments:
            return sources[0]
        if not arguments and (hidden := self._hidden(station, seen)):
            return self._add(station, run, output, found, "input not compared", hidden)
        note = ", ".join(map(str, arguments)) or found.note
        return self._add(station, run, output, found, "operator", note, [argument.name for argument in arguments])

    def _hidden(self, station: Station, seen: Seen) -> str:
        """The inputs that cannot be compared, in words; of a backward operator also those of its forward operator, which
        may have saved them."""
        saved = self._unread.get((station.op_id, seen.forward), "") if station.backward_op else ""
        if not any(texts.UNREADABLE in text for text in seen.inputs):
            return saved
        names = station.names or [f"grad_outputs[{i}]" for i in range(len(seen.inputs))]
        found = [
            f"{name}: {REASONS[reason]}"
            for name, text in zip(names, seen.inputs, strict=False)
            for reason in filter(None, map(texts.why_unreadable, texts.tensors_in(text)))
            if reason not in _WITHOUT_VALUES
        ]
        return ", ".join(dict.fromkeys(filter(None, [*found, saved])))

    def _judge(
        self, source: Hashable, seen: Seen, changes: Sequence[Change], tensor: Any, other: Any, output: int
    ) -> None:
        """Notes how far both results are from the float64 result, if the operator got the same inputs in both runs."""
        cause = self.causes.get(source)
        if seen.exact is None or cause is None or cause.ulps is not None or changes or tensor is None or other is None:
            return
        from . import float64

        exact = seen.exact()
        if exact is not None and output < len(exact):
            cause.ulps = float64.ulps(other, exact[output]), float64.ulps(tensor, exact[output])

    def _reads_saved(self, station: Station, forward: int | None) -> bool:
        """True if it reads values that its forward operator saved in a run that differed."""
        return bool(station.backward_op) and (station.op_id, forward) in self._tainted

    def _add_inputs(
        self,
        station: Station,
        run: int,
        output: int,
        found: Any,
        changes: Sequence[Change],
        arguments: Sequence[Change] = (),
    ) -> Hashable:
        parameters = [name for change in changes for name in change.changed_parameters]
        if station.accumulates and parameters:
            parameters = ["gradient", *parameters]  # the parameter may be another cause
        key = self._add(station, run, output, found, "input", ", ".join(map(str, changes)), parameters)
        self.causes[key].arguments = self.causes[key].arguments or ", ".join(map(str, arguments))
        for change in changes:
            self.causes[key].read |= {theirs for theirs, _ in change.pairs}
            self.consequences.add((ours for _, ours in change.pairs), key)
        return key

    def _add(
        self, station: Station, run: int, output: int, found: Any, kind: Kind, note: str, names: Sequence[str] = ()
    ) -> Hashable:
        """`names`: of parameters or of arguments; calls of one line in which the same ones differ are one cause."""
        key: Hashable = (kind, station.id)
        if names and kind == "input":
            key = (kind, *names)
        elif names:
            key = (kind, station.operator, station.backward_op, station.module_path, station.source, *names)
        self.causes.setdefault(key, Cause(kind, station, run, output, found, note)).add(station, run, found)
        return key

    def _follow(self, outputs: Iterable[str], source: Hashable, station: Station) -> None:
        self.consequences.add(outputs, source, gradients=bool(station.backward_op) and not station.accumulates)

    def _sources(self, inputs: Iterable[str], station: Station) -> list[Hashable]:
        if not self.consequences:
            return []
        found = (
            self.consequences.source(tensor, backward=bool(station.backward_op))
            for text in inputs
            for tensor in texts.tensors_in(text)
        )
        return [source for source in found if source is not None]


_EQUAL = object()
_CLOSE = Tolerances(close=True)
_WITHOUT_VALUES = {"meta", "symbolic", "freed"}


def _no_difference(note: str) -> Any:
    """For what is known by a hash only."""
    return Difference("", None, None, None, None, note)
