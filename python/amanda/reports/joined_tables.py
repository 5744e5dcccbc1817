"""Joined tables: a table of two runs, with a row of each next to each other, and their differences."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from amanda.reports.sections import Table

_NUMBER = re.compile(r"(-?[\d,]+(?:\.(\d+))?)(%?)")


class _Cell(NamedTuple):
    text: str
    key: float | str | None


_EMPTY = _Cell("", None)


def joined(ours: Table, theirs: Table, names: tuple[str, str]) -> Table:
    """One table of two: each row of `ours`, in their order, with the row of `theirs` of the same name; then its difference.

    The name is the first column; rows with equal names are taken in their order. A row that one table has alone stands
    where it is in that table, and its difference says so. Columns that are no numbers, and those that one table has alone,
    are left out.

    Arguments:
        names: of the two runs, for headings.
    """
    first, second = _by_name(ours), _by_name(theirs)
    rows = _merged(list(first), list(second))
    both = [heading for place, heading in enumerate(ours.headings) if place and _is_number(ours, theirs, heading)]
    columns = [(ours.headings[0], False, [_name_of(ours, theirs, first.get(row), second.get(row)) for row in rows])]
    for heading in both:
        sides = [
            [_cell(table, heading, known.get(row)) for row in rows]
            for table, known in ((ours, first), (theirs, second))
        ]
        differences = [
            _difference(a, b, row in first, row in second, names) for a, b, row in zip(*sides, rows, strict=True)
        ]
        titles = (f"{heading}, {names[0]}", f"{heading}, {names[1]}", f"{heading}, difference")
        columns += [(title, True, cells) for title, cells in zip(titles, [*sides, differences], strict=True)]
    alone = [heading for heading in (*ours.headings[1:], *theirs.headings[1:]) if heading not in both]
    notes = [f"not compared: {', '.join(dict.fromkeys(alone))}"] if alone else []
    for table, name in ((ours, names[0]), (theirs, names[1])):
        if table.total > len(table.texts[0] if table.texts else ()):
            notes.append(f"{name}: only the first of {table.total:,} rows")
    return Table(
        ours.heading,
        "\n".join(notes),
        [title for title, _, _ in columns],
        [is_number for _, is_number, _ in columns],
        [[cell.text for cell in cells] for _, _, cells in columns],
        [[cell.key for cell in cells] for _, _, cells in columns],
        len(rows),
    )


_Row = tuple[str, int]  # a name, and how many rows before have the same


def _by_name(table: Table) -> dict[_Row, int]:
    """The position of each row."""
    seen: collections.Counter[str] = collections.Counter()
    found = {}
    for place, name in enumerate(table.texts[0] if table.texts else ()):
        found[name, seen[name]] = place
        seen[name] += 1
    return found


def _merged(first: Sequence[_Row], second: Sequence[_Row]) -> list[_Row]:
    """All rows: those of the second alone stand behind the one that is before them there."""
    known, behind = set(first), dict[_Row | None, list[_Row]]()
    last: _Row | None = None
    for row in second:
        if row in known:
            last = row
        else:
            behind.setdefault(last, []).append(row)
    return [*behind.get(None, ()), *_with_those_behind(first, behind)]


def _with_those_behind(rows: Iterable[_Row], behind: dict[_Row | None, list[_Row]]) -> Iterable[_Row]:
    for row in rows:
        yield row
        yield from behind.get(row, ())


def _is_number(ours: Table, theirs: Table, heading: str) -> bool:
    if heading not in theirs.headings:
        return False
    sides = [(table, list(table.headings).index(heading)) for table in (ours, theirs)]
    is_known = any(table.keys[place] is not None for table, place in sides)  # a table without rows has no keys
    return is_known and all(table.numbers[place] for table, place in sides)


def _name_of(ours: Table, theirs: Table, first: int | None, second: int | None) -> _Cell:
    table, place = (ours, first) if first is not None else (theirs, second)
    return _cell(table, table.headings[0], place)


def _cell(table: Table, heading: str, place: int | None) -> _Cell:
    if place is None:
        return _EMPTY
    column = list(table.headings).index(heading)
    keys, text = table.keys[column], table.texts[column][place]
    return _Cell(text, keys[place] if keys is not None else None if table.numbers[column] else text)


def _difference(a: _Cell, b: _Cell, in_first: bool, in_second: bool, names: tuple[str, str]) -> _Cell:
    """The second less the first, in the digits that are shown. A row of one run alone counts as all of it."""
    keys = [cell.key if isinstance(cell.key, (int, float)) else None for cell in (a, b)]
    if not (in_first and in_second):
        known = keys[0] if in_first else keys[1]
        text = f"only {names[0] if in_first else names[1]}"
        return _Cell(text, None if known is None else -known if in_first else known)
    numbers = [_NUMBER.fullmatch(cell.text) for cell in (a, b)]
    if keys[0] is None or keys[1] is None or numbers[0] is None or numbers[1] is None:
        return _EMPTY
    values = [float(number[1].replace(",", "")) for number in numbers if number]
    digits = max(len(number[2] or "") for number in numbers if number)
    return _Cell(f"{values[1] - values[0]:+,.{digits}f}{numbers[0][3]}", keys[1] - keys[0])
