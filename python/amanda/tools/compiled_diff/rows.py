"""Rows of CompiledDiff: compiled graphs whose results or gradients differ from those of the same graph run eagerly."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from amanda.toolkit import Column, Grouping, fields_of, general_column, number_column
from amanda.toolkit.evidence import counted
from amanda.toolkit.frames import short_line

GroupBy = Literal["graph"]
Direction = Literal["forward", "backward"]

_MOST_NAMED = 8


@dataclasses.dataclass(frozen=True)
class Row:
    """A graph of a compiled function, in one direction. All but `runs` and the differences are of the first run that
    differs."""

    function: str  # "__main__.step (train.py:7)"
    graph: int  # the number of the graph in the function, from 0 on, in the order in which they ran
    direction: Direction
    what: str  # "output 0", "gradient of l_x_"
    dtype: str
    shape: tuple[int, ...]
    runs: int  # in which it differs
    first_run: int  # the first of them, from 0 on
    elements: int  # that differ, in that run
    max_abs: float | None  # over all runs; None if shapes differ, or if an element is finite in one of the two only
    max_rel: float | None
    operators: tuple[str, ...]  # the smallest set that differs when it is compiled as one: "aten::add (c.py:6)"
    is_smallest: bool  # it is not if the time was over, or a smaller piece could not be compiled
    kernels: tuple[str, ...]  # generated for them
    layer: str  # the first part of the compiler with which they differ
    removed_by: tuple[str, ...]  # options of inductor, each alone: "emulate_precision_casts=True"
    ulps: float | None  # of these operators: the largest error of the compiled code against float64
    reference_ulps: float | None  # and of the eager operators
    note: str

    @property
    def sentences(self) -> list[str]:
        """All of it, in words."""
        size = "" if self.max_abs is None else f" by up to {self.max_abs:.4g}"
        number = f", graph {self.graph}" if self.graph else ""
        note = f": {self.note}" if self.note else ""
        found = [
            f"compiled function {short(self.function)}{number}: {self.what} differs from eager mode{size} "
            f"({self.dtype}, {counted(self.elements, 'element')}){note}"
        ]
        if self.operators:
            found.append(f"{self._which}: {named(self.operators)}")
        if self.layer:
            found.append(f"the difference arises in {self.layer}")
        if self.kernels:
            found.append(f"generated code: {', '.join(self.kernels)}")
        if self.ulps is not None and self.reference_ulps is not None:
            found.append(_judgment(self.ulps, self.reference_ulps))
        found += [f"{option} of torch._inductor.config removes it" for option in self.removed_by]
        return found

    @property
    def _which(self) -> str:
        if self.is_smallest:
            return "the smallest set of operators that differs when compiled as one"
        return "these operators differ when compiled as one, and a part of them may, too"


def short(function: str) -> str:
    """ "__main__.step (train.py:7)", where it has the path of the file."""
    name, separator, line = function.removesuffix(")").partition(" (")
    return f"{name} ({short_line(line)})" if separator else function


def named(operators: tuple[str, ...]) -> str:
    """Equal ones together, and not all of a long list."""
    counts: dict[str, int] = {}
    for operator in operators:
        counts[operator] = counts.get(operator, 0) + 1
    texts = [f"{count} times {name}" if count > 1 else name for name, count in counts.items()]
    more = len(texts) - _MOST_NAMED
    return ", ".join(texts[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _judgment(ulps: float, reference: float) -> str:
    if ulps == reference:
        return f"both are off by {ulps:.3g} units in the last place from float64"
    nearer = "compiled" if ulps < reference else "eager"
    return (
        f"{nearer} is nearer to float64: compiled is off by up to {ulps:.3g} units in the last place, eager by "
        f"{reference:.3g}"
    )


def _operators(row: Any) -> str:
    return named(row.operators)


def _result(row: Any) -> str:
    return f"{row.dtype}{list(row.shape)}"


COLUMNS = [
    Column("compiled function", lambda row: short(row.function), left=True, folds=True, field="function"),
    Column("direction", lambda row: row.direction, left=True, field="direction"),
    Column("smallest set of operators", _operators, left=True, folds=True, field="operators", decides=True),
    Column("what", lambda row: row.what, left=True, folds=True, field="what"),
    general_column("max abs", "max_abs"),
    general_column("max rel", "max_rel"),
    number_column("runs", "runs"),
    number_column("first", "first_run"),
    number_column("elements", "elements"),
    Column("result", _result, left=True, field="shape"),
]
GROUPINGS = {"graph": Grouping(COLUMNS, fields_of(Row))}
