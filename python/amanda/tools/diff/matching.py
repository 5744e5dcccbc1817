"""Matching: which operator of a run is which of the reference."""

from __future__ import annotations

import collections
import dataclasses
import functools
import linecache
from collections.abc import Sequence

from amanda.toolkit.frames import line_in_cell, split_line

from .record import Execution, Record, Station
from .texts import dtype_in, is_telling, tensors_in

Id = tuple[int, int | None]

_PART = 3  # two programs have parted if less than a tenth of the last operators, at least this many, have a counterpart
_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Parting:
    """The forward operators from which on nearly nothing has a counterpart."""

    ours: Station
    theirs: Station
    operators: int  # of this run from there on
    counterparts: int  # of these

    def __str__(self) -> str:
        counterparts = {0: "none has", 1: "1 has"}.get(self.counterparts, f"{self.counterparts} have")
        return (
            f"the programs part at {_where(self.ours)}, where the reference has {_where(self.theirs)}: "
            f"of {self.operators} operators from there on, {counterparts} a counterpart"
        )


class Matching:
    """Operators are matched by their ids. Those whose ids the record does not have are matched with one of the same type
    in the same module, with the same parameters, at a line with the same text: that whose first inputs agree most. It is
    a new operator if all tensors that it reads are in the reference, but that one reads none of them.

    If there is no such line, as in a port, they are matched with one of the same type that reads a tensor with the same
    elements, or is in the same module. Its line must not be in the file of this program: it may come yet."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._by_id = {station.id: i for i, station in enumerate(record.stations)}
        self._by_look: dict[tuple[str, ...], collections.deque[int]] = collections.defaultdict(collections.deque)
        for i, station in enumerate(record.stations):
            self._by_look[station.look].append(i)
        self._taken: set[int] = set()
        self._matches: dict[Id, int | None] = {}
        self.stations: dict[Id, Station] = {}  # of this run, in order
        self.counts: collections.Counter[Id] = collections.Counter()  # how often each ran
        self.last: Station | None = None  # the one that ran last
        self.has_ended_early = False  # this run: what it has not reached is no difference
        self._lone: dict[Id, int] = {}  # a hash of all runs of operators without a counterpart
        self._since: collections.Counter[Id] = collections.Counter()  # runs after the last one with a counterpart
        self._reached = 0  # how many of the record's executions came before, or are, the last counterpart

    def next(self, station: Station, inputs: Sequence[str]) -> tuple[int, Execution | None]:
        """The number of this run of the operator, and the reference's run; None if there is none."""
        match, number = self._match(station, inputs), self.counts[station.id]
        self.counts[station.id] += 1
        self.last = station
        runs = self._record.positions(match) if match is not None else []
        if number >= len(runs):
            self._since[station.id] += 1
            return number, None
        self._since.clear()
        self._reached = max(self._reached, runs[number] + 1)
        return number, self._record.executions[runs[number]][1]

    def add_lone(self, station: Station, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """A run without a counterpart. `outputs`: texts of its results."""
        self._lone[station.id] = _hash(self._lone.get(station.id, 0), inputs, outputs)

    def counterpart(self, identity: Id) -> int | None:
        """Its position in the record."""
        return self._matches[identity]

    def alike(self) -> tuple[set[Id], set[int]]:
        """Operators without a counterpart of which the other run has one that is alike: of the same type, in a module of
        the same name, with the same inputs and results in all its runs. Where a line was changed, it has other text. To be
        asked at the end: until then another operator may turn out to be the counterpart.
        """
        theirs: dict[object, collections.deque[int]] = collections.defaultdict(collections.deque)
        matched = set(self._matches.values())
        for i, station in enumerate(self._record.stations):
            if i in matched:
                continue
            runs = 0
            for position in self._record.positions(i):
                execution = self._record.executions[position][1]
                runs = _hash(runs, execution.inputs, execution.outputs)
            theirs[_kind(station), runs].append(i)
        ours: set[Id] = set()
        found: set[int] = set()
        for identity, runs in self._lone.items():
            if self._matches[identity] is None and (alike := theirs.get((_kind(self.stations[identity]), runs))):
                ours.add(identity)
                found.add(alike.popleft())
        return ours, found

    def counts_of_reference(self) -> dict[int, int]:
        """The number of runs that each of the record's operators had in this run."""
        return {match: self.counts[identity] for identity, match in self._matches.items() if match is not None}

    @property
    def comparable(self) -> Sequence[tuple[int, Execution]]:
        """The record's executions, up to where this run has ended early."""
        executions = self._record.executions
        return executions[: self._reached] if self.has_ended_early else executions

    @property
    def comparable_counts(self) -> collections.Counter[Id]:
        """How often each of this run's operators ran, up to where the record was stopped."""
        return self.counts if self._record.is_complete else self.counts - self._since

    def parting(self) -> Parting | None:
        """The place from which on this run and the reference have nothing in common."""
        matched = set(self._matches.values())
        counts, reached = self.comparable_counts, {i for i, _ in self.comparable}
        ours = [
            (one, self._matches[one.id] is not None)
            for one in self.stations.values()
            if _is_computing(one) and counts[one.id]
        ]
        theirs = [
            (one, i in matched) for i, one in enumerate(self._record.stations) if _is_computing(one) and i in reached
        ]
        first, other = _first_of_rest(ours), _first_of_rest(theirs)
        if first is None or other is None:
            return None
        rest = ours[first:]
        return Parting(ours[first][0], theirs[other][0], len(rest), sum(is_matched for _, is_matched in rest))

    def _match(self, station: Station, inputs: Sequence[str]) -> int | None:
        if station.id not in self._matches:
            self.stations[station.id] = station
            known, alike = self._by_id.get(station.id), self._by_look[station.look]
            match = known
            if known is None and alike:
                best = max(alike, key=lambda i: self._agreement(i, inputs))  # the first of several
                read = [tensor for text in inputs for tensor in filter(is_telling, tensors_in(text))]
                # A view, such as a new parameter's detach, may be of memory that still holds a tensor of the reference.
                # A leaf is known by its name.
                may_be_new = not (station.is_view or station.accumulates or self._agreement(best, inputs)[0]) and read
                is_new = may_be_new and self._tensors.issuperset(read)
                match = None if is_new else best
            if match is None and known is None:
                match = self._rewritten(station, inputs)
            if match is not None:
                self._taken.add(match)
                look = self._by_look[self._record.stations[match].look]
                if match in look:
                    look.remove(match)
            self._matches[station.id] = match
        return self._matches[station.id]

    def _rewritten(self, station: Station, inputs: Sequence[str]) -> int | None:
        """The counterpart of an operator of other code."""
        stations = self._record.stations
        if station.backward_op:
            forward = self._matches.get((station.op_id, None))
            key = None if forward is None else (stations[forward].op_id, station.backward_op, station.operator)
            return next((i for i in self._backward.get(key, ()) if i not in self._taken), None)
        lines = _lines_of(station.source)
        read = {tensor for text in inputs for tensor in filter(is_telling, tensors_in(text))}
        if not lines or not read:
            return None
        known = self._tensors.issuperset(read)
        beside = self._in_modules.get((station.operator, station.module_path), ()) if station.module_path else ()
        near = {i for tensor in read for i in self._readers.get((station.operator, tensor), ())}.union(beside)
        best, found = (0, False, 0), None
        for i in sorted(near - self._taken):
            if stations[i].line in lines:  # it may come yet
                continue
            if _is_complex(inputs) != _is_complex(self._inputs_of(i)):  # as of rotary embeddings: another computation
                continue
            tensors, same = self._agreement(i, inputs)
            score = tensors, stations[i].module_path == station.module_path, same
            if score > best and (tensors or not known):
                best, found = score, i
        return found

    @functools.cached_property
    def _backward(self) -> dict[object, list[int]]:
        found: dict[object, list[int]] = collections.defaultdict(list)
        for i, station in enumerate(self._record.stations):
            if station.backward_op:
                found[station.op_id, station.backward_op, station.operator].append(i)
        return found

    @functools.cached_property
    def _in_modules(self) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
        for i, station in enumerate(self._record.stations):
            if not station.backward_op:
                found[station.operator, station.module_path].append(i)
        return found

    @functools.cached_property
    def _readers(self) -> dict[tuple[str, str], list[int]]:
        """Forward operators, by their type and a tensor that they read in their first run."""
        found: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
        for i, station in enumerate(self._record.stations):
            for text in () if station.backward_op else self._inputs_of(i):
                for tensor in filter(is_telling, tensors_in(text)):
                    found[station.operator, tensor].append(i)
        return found

    @functools.cached_property
    def _tensors(self) -> set[str]:
        """The texts of all tensors that the reference has."""
        return {
            tensor
            for _, execution in self._record.executions
            for text in (*execution.outputs, *execution.inputs)
            for tensor in tensors_in(text)
        }

    def _agreement(self, match: int, inputs: Sequence[str]) -> tuple[int, int]:
        """The number of inputs of the match's first run that are these: tensors, and all."""
        same = [one for one, other in zip(self._inputs_of(match), inputs, strict=False) if one == other]
        return sum(map(_has_tensor, same)), len(same)

    def _inputs_of(self, match: int) -> Sequence[str]:
        """The inputs of its first run."""
        runs = self._record.positions(match)[:1]
        return self._record.executions[runs[0]][1].inputs if runs else []


@functools.lru_cache(maxsize=64)
def _lines_in(path: str) -> frozenset[str]:
    return frozenset(line.strip() for line in linecache.getlines(path))


def _lines_of(source: str) -> frozenset[str]:
    """The lines of the file of a line; none if it cannot be read."""
    place = split_line(source)
    return _lines_in(place[0]) if place else frozenset()


def _is_complex(inputs: Sequence[str]) -> bool:
    return any(dtype_in(tensor).startswith("complex") for text in inputs for tensor in tensors_in(text))


def _has_tensor(text: str) -> bool:
    return any(map(is_telling, tensors_in(text)))


def _kind(station: Station) -> tuple[str, str | None, str]:
    return station.operator, station.backward_op, station.module_path


def _hash(runs: int, inputs: Sequence[str], outputs: Sequence[str]) -> int:
    """The hash of the runs so far and one more run."""
    return hash((runs, tuple(inputs), tuple(outputs)))


def _is_computing(station: Station) -> bool:
    return not station.backward_op and not station.is_view


def _first_of_rest(stations: Sequence[tuple[Station, bool]]) -> int | None:
    """The first one without a counterpart from which on nearly none has one."""
    found, matched = None, 0
    for i in reversed(range(len(stations))):
        count = len(stations) - i
        matched += stations[i][1]
        if not stations[i][1] and count >= _PART and matched < _SHARE * count:
            found = i
    return found


def _where(station: Station) -> str:
    module = f" in {station.module_path}" if station.module_path else ""
    return f"{station.operator}{module} ({line_in_cell(station.source)})"
