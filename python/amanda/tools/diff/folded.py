"""One change that several operators have, such as those of all layers, as one row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from amanda.toolkit.answers import folded, pattern_of
from amanda.toolkit.frames import line_of_code

from .rows import LONE, Folded, Row

_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")  # in a note with names of parameters


def fold(rows: Sequence[Row]) -> list[Folded]:
    """Causes with the largest differences first, then the operators that only one run has, in the program's order."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        place = () if row.note else (pattern_of(row.module_path), "" if row.module_path else row.source)
        key = row.kind, row.name, row.backward_op, _LAYER.sub("*", row.note), row.dtype, *place
        groups.setdefault(key, []).append(row)
    return sorted(map(_folded, groups.values()), key=_order)


def _folded(group: Sequence[Row]) -> Folded:
    most = max(group, key=lambda row: row.max_abs if row.max_abs is not None else math.inf)
    notes = {row.note for row in group}
    modules = folded(row.module_path for row in group)
    return Folded(
        most.kind,
        most.name,
        most.backward_op,
        modules or ", ".join(dict.fromkeys(line_of_code(row.source) for row in group)),
        most.note if len(notes) == 1 else _LAYER.sub("*", most.note),
        len(group),
        sum(row.runs for row in group),
        _of(min, [row.first_run for row in group]),
        _of(sum, [row.elements for row in group]),
        _of(max, [row.max_abs for row in group]),
        _of(max, [row.max_rel for row in group]),
        most.dtype,
        most.shape,
        most.reference_ulps,
        most.ulps,
    )


def _order(one: Folded) -> tuple[bool, float]:
    """Another dtype or shape, of which no difference is known, counts as the largest."""
    size = math.inf if one.max_abs is None or math.isnan(one.max_abs) else one.max_abs
    return (one.kind in LONE, 0 if one.kind in LONE else -size)


def _of(function: Callable[[list[Any]], Any], values: Sequence[float | None]) -> Any:
    known = [value for value in values if value is not None]
    return function(known) if known else None
