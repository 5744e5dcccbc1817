"""Operators that only one of two runs has: rows for them, and their consequences."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Collection, Hashable, Iterable, Mapping

from .consequences import Consequences
from .matching import Id, Matching
from .record import Record, Station
from .rows import Kind, Row
from .texts import tensors_in

_CASTS = ("aten::to.", "aten::_to_copy")


def of_reference(record: Record, matching: Matching, *, heal: bool) -> Consequences:
    """Tensors of the reference that operators made which only it has. This run can't have them."""
    found = Consequences()
    counts, done = matching.counts_of_reference(), [0] * len(record.stations)
    for i, execution in matching.comparable:
        station = record.stations[i]
        if station.accumulates:
            found.accumulate(execution.inputs[0])
            continue
        is_lone = done[i] >= counts.get(i, 0)
        done[i] += 1
        backward = bool(station.backward_op)
        source = None
        if station.is_view or not heal:
            read = (tensor for text in execution.inputs for tensor in tensors_in(text))
            source = next(filter(None, (found.source(tensor, backward=backward) for tensor in read)), None)
        if is_lone or source is not None:
            found.add(execution.outputs, source or ("lone", station.id), gradients=backward)
    return found


def rows(
    record: Record, matching: Matching, ours: Consequences, theirs: Consequences, causes: Collection[int]
) -> list[Row]:
    """Operators that one run has alone, or that ran more or less often. Left out are their backward operators and those
    of forward operators that are `causes`, by id; views that no operator computes with; and what comes after the two
    programs have parted."""
    counts, parting = matching.counts_of_reference(), matching.parting()
    its_causes: set[int] = set()
    my_causes = set(causes)
    for identity, station in matching.stations.items():
        match = matching.counterpart(identity)
        if station.is_compiled or (match is not None and record.stations[match].is_compiled):
            my_causes.add(station.op_id)
        if match is not None and station.op_id in my_causes:
            its_causes.add(record.stations[match].op_id)
    last = (parting.ours, parting.theirs) if parting else (None, None)
    my_runs = matching.comparable_counts
    my_alike, its_alike = matching.alike()
    # Accumulations are not listed; the operators that lead to them are.
    every = [one for one in matching.stations.values() if not one.accumulates and one.id not in my_alike]
    mine = [one for one in every if matching.counterpart(one.id) is None and my_runs[one.id]]
    reached = collections.Counter(i for i, _ in matching.comparable)
    others = [(i, one) for i, one in enumerate(record.stations) if i not in counts and i not in its_alike]
    its = [one for i, one in others if reached[i] and not one.accumulates]
    its_runs = {station.id: reached[i] for i, station in enumerate(record.stations)}
    return [
        *_rows("only in this run", mine, my_runs, ours, last[0], my_causes),
        *_other_counts(record, matching, my_runs, reached),
        *_rows("only in reference", its, its_runs, theirs, last[1], its_causes),
    ]


def _rows(
    kind: Kind,
    stations: Iterable[Station],
    runs: Mapping[Id, int],
    consequences: Consequences,
    last: Station | None,
    causes: Collection[int],
) -> list[Row]:
    found: list[Row] = []
    stations = list(stations)
    alone = {station.op_id for station in stations if not station.backward_op}
    rows: dict[Hashable, int] = {}  # their positions: one for all casts, and one for equal operators of a line
    places: collections.Counter[int] = collections.Counter()
    rest = 0
    has_parted = False
    for station in stations:
        if station.backward_op and (station.op_id in alone or (station.op_id in causes and not _is_cast(station))):
            continue
        if station.is_view and not consequences.readers["lone", station.id]:
            continue
        if has_parted:
            rest += 1
            continue
        key: Hashable = (station.operator, station.backward_op, station.module_path, station.source)
        row = rows.setdefault("casts" if _is_cast(station) else key, len(found))
        places[row] += 1
        if row == len(found):
            found.append(_row(kind, station, runs[station.id]))
        else:
            what = f"{'casts at ' if _is_cast(station) else ''}{places[row]} places"
            found[row] = dataclasses.replace(found[row], runs=found[row].runs + runs[station.id], note=what)
        has_parted = station is last
    if rest:
        found[-1] = dataclasses.replace(found[-1], note=f"and {rest} more from here on")
    return found


def _other_counts(
    record: Record, matching: Matching, my_runs: Mapping[Id, int], its_runs: Mapping[int, int]
) -> list[Row]:
    found, seen = [], set()
    for identity, station in matching.stations.items():
        match, count = matching.counterpart(identity), my_runs[identity]
        if match is None or station.is_view or station.accumulates or (count == (other := its_runs[match])):
            continue
        if station.op_id not in seen:
            note = f"ran {_times(count)}, in the reference {_times(other)}"
            found.append(_row("other count", station, abs(count - other), note))
        seen.add(station.op_id)
    return found


def _is_cast(station: Station) -> bool:
    return station.backward_op == "ToCopyBackward0" or station.operator.startswith(_CASTS)


def _row(kind: Kind, station: Station, runs: int, note: str = "") -> Row:
    where = station.operator, station.backward_op, station.op_id, station.module_path, station.source
    return Row(kind, *where, runs, None, None, "", None, None, None, None, note)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
