"""RankRows: how figures differ between the ranks of a program."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from amanda.reports.columns import general_column, name_column, number_column, percentage_column
from amanda.reports.data_frame import fields_of
from amanda.reports.results import Grouping, Results

VALUES = ("device_ns", "total_ns", "host_ns", "flops", "calls", "value")
"""Fields that are compared if none is named: the first that the rows have."""

Combine = Literal["sum", "mean"]


@dataclasses.dataclass(frozen=True)
class SpreadRow:
    """The values of the ranks under one name: an operator type, a module, a line.

    A rank that has no such row counts as 0.
    """

    name: str
    ranks: int  # that have it
    least: float
    median: float
    most: float
    slowest_rank: int  # the one that has the most
    imbalance: float  # most / mean - 1: the part of the mean that the other ranks wait for the slowest


@dataclasses.dataclass(frozen=True)
class RankRow:
    """All rows of one rank."""

    name: str  # "rank 3, host"
    rank: int
    host: str
    rows: int
    total: float  # or their mean, if the table has means
    above_mean: float  # total / the mean of all ranks - 1


class Part(NamedTuple):
    """Rows of one rank under one name, taken together."""

    key: tuple[Any, ...]  # names the rows of one name
    name: str
    rank: int
    rows: int
    known: int  # rows that have a value, which is not NaN
    total: float  # of these


class RankRows(Results[SpreadRow | RankRow, Literal["name", "rank"]]):
    """Rows of all ranks: tables by "name" (the default: how ranks differ) and by "rank". Made by `gather` and `report`.

    Attributes:
        hosts: of each rank, by its number.
        value: the rows' field that tables compare.
        of_rank: from `gather`, the rows of each rank, as they were given to it.
    """

    _speaker = "ranks"
    _groupings = {
        "name": Grouping(
            (
                name_column("name"),
                number_column("ranks", "ranks"),
                *(general_column(name, name) for name in ("least", "median", "most")),
                number_column("slowest rank", "slowest_rank"),
                percentage_column("imbalance", "imbalance"),
            ),
            fields_of(SpreadRow),
        ),
        "rank": Grouping(
            (
                name_column("rank"),
                number_column("rows", "rows"),
                general_column("total", "total"),
                percentage_column("above mean", "above_mean"),
            ),
            fields_of(RankRow),
        ),
    }

    def __init__(
        self,
        parts: Iterable[Part],
        hosts: Mapping[int, str],
        value: str,
        combine: Combine = "sum",
        of_rank: Sequence[Sequence[Any]] = (),
    ) -> None:
        self._parts, self.hosts, self.value = list(parts), dict(sorted(hosts.items())), value
        self._combine, self.of_rank = combine, [list(rows) for rows in of_rank]

    def reset(self) -> None:
        """Forgets all rows."""
        self._parts, self.of_rank = [], [[] for _ in self.of_rank]

    def _rows(self, by: str) -> list[SpreadRow | RankRow]:
        return [*(self._ranks() if by == "rank" else self._spread())]

    def _remarks(self, by: str) -> list[str]:
        what = self.value if self._combine == "sum" else f"mean {self.value}"
        return [f"{what} of {len(self.hosts)} ranks"]

    def _spread(self) -> list[SpreadRow]:
        found: dict[tuple[Any, ...], dict[int, list[Part]]] = defaultdict(lambda: defaultdict(list))
        for part in self._parts:
            found[part.key][part.rank].append(part)
        return sorted(map(self._spread_row, found.values()), key=lambda row: -row.most)

    def _spread_row(self, of_rank: Mapping[int, Sequence[Part]]) -> SpreadRow:
        values = {rank: self._combined(of_rank.get(rank, ())) for rank in self.hosts}
        slowest = max(values, key=lambda rank: values[rank])
        most, mean = values[slowest], statistics.fmean(values.values())
        name = next(iter(of_rank.values()))[0].name
        median = statistics.median(values.values())
        return SpreadRow(
            name, len(of_rank), min(values.values()), median, most, slowest, most / mean - 1 if mean else 0.0
        )

    def _ranks(self) -> list[RankRow]:
        of_rank: dict[int, list[Part]] = {rank: [] for rank in self.hosts}
        for part in self._parts:
            of_rank[part.rank].append(part)
        totals = {rank: self._combined(parts) for rank, parts in of_rank.items()}
        mean = statistics.fmean(totals.values()) if totals else 0.0
        return [
            RankRow(
                f"rank {rank}, {self.hosts[rank]}".removesuffix(", "),
                rank,
                self.hosts[rank],
                sum(part.rows for part in of_rank[rank]),
                total,
                total / mean - 1 if mean else 0.0,
            )
            for rank, total in totals.items()
        ]

    def _combined(self, parts: Sequence[Part]) -> float:
        total = sum(part.total for part in parts)
        known = sum(part.known for part in parts)
        return total if self._combine == "sum" else total / known if known else 0.0


def part_of(row: Any, rank: int, value: str) -> Part:
    """A row of a tool by itself."""
    figure = getattr(row, value)
    known = figure is not None and not math.isnan(figure)
    return Part((row.name, getattr(row, "op_id", None)), row.name, rank, 1, int(known), figure if known else 0)


def first_value(columns: Sequence[str], value: str | None = None) -> str | None:
    """The value if it is one of these columns. For None, the first of `VALUES` that is one. Else None."""
    return next((name for name in ((value,) if value else VALUES) if name in columns), None)
