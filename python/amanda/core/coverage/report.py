"""CoverageReport: which operators of a program a scope's tools saw. (`tools.hook_coverage` is about module hooks.)"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from amanda.core.coverage.reasons import REASONS
from amanda.reports import notebook

Phase = Literal["forward", "backward"]


@dataclasses.dataclass(frozen=True)
class CoverageRow:
    """The calls of one operator type, all overloads; in backward, the runs of one kind of autograd node."""

    phase: Phase
    operator: str  # "aten::add"; "autograd::AddBackward0"; "tensorflow::AddV2"
    dispatched: int  # calls, in PyTorch as RecordFunction counts them: `seen` and all of `skipped`
    seen: int  # those that a tool of the scope saw
    skipped: Mapping[str, int]  # the others, by reason


@dataclasses.dataclass(frozen=True)
class CoverageReport:
    """The calls that PyTorch dispatched while a scope was entered, and which of them its tools saw; of TensorFlow, eager
    operators by runs, and those of graphs once for each graph that was instrumented. From `Scope.coverage`.

    ``print(report)`` shows it as a table. It is a snapshot.
    """

    rows: tuple[CoverageRow, ...]  # forward first; then by times seen, most first

    def total(self, phase: Phase) -> CoverageRow:
        """The sums over all rows of a phase. Its `operator` is ``"all"``."""
        rows = [row for row in self.rows if row.phase == phase]
        skipped = sum((Counter(row.skipped) for row in rows), Counter[str]())
        return _row(phase, "all", sum(row.seen for row in rows), skipped)

    def row(self, operator: str) -> CoverageRow:
        """The row of an operator or node, by its full name.

        Raises:
            KeyError: it was not called.
        """
        for row in self.rows:
            if row.operator == operator:
                return row
        raise KeyError(f"[coverage] {operator!r} was not called while the scope was entered")

    def table(self, top: int | None = None) -> str:
        """Both phases as text, with the `top` rows of each (all by default), and a sentence for each reason that
        occurs."""
        lines: list[str] = []
        reasons: Counter[str] = Counter()
        phases: tuple[Phase, ...] = ("forward", "backward")
        for phase in phases:
            rows, total = [row for row in self.rows if row.phase == phase], self.total(phase)
            reasons.update(total.skipped)
            shown = rows[:top]
            width = max(len("operator"), *(len(row.operator) for row in shown), 0)
            title = f"{phase}: {total.dispatched} dispatched, {total.seen} seen"
            lines += [f"{title}, {total.dispatched - total.seen} skipped" if rows else f"{phase}: nothing"]
            if shown:
                lines += [f"  {'operator':{width}}  dispatched        seen  skipped"]
            lines += [f"  {row.operator:{width}}  {row.dispatched:10}  {row.seen:10}  {_reasons(row)}" for row in shown]
            if len(shown) < len(rows):
                lines += [f"  and {len(rows) - len(shown)} more"]
        if reasons:
            lines += ["skipped because"]
        lines += [f"  {reason:8}  {reasons[reason]:10}  {REASONS[reason]}" for reason in REASONS if reasons[reason]]
        return "\n".join(line.rstrip() for line in lines)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """For notebooks: a table of all rows, and a sentence for each reason that occurs."""
        headings = ["", "operator", "dispatched", "seen", "skipped"]
        rows = [([row.phase, *_texts(row)], "") for row in self.rows]
        totals = [self.total("forward"), self.total("backward")]
        rows += [([f"all {row.phase}", "", *_texts(row)[1:]], "font-weight: bold") for row in totals if row.dispatched]
        reasons = sum((Counter(row.skipped) for row in totals), Counter[str]())
        why = "\n".join(f"{reason}: {REASONS[reason]}" for reason in REASONS if reasons[reason])
        return notebook.table(headings, ["left", "left", "right", "right", "left"], rows, why)


def report_of(counts: Iterable[tuple[str, bool, int, dict[str, int]]]) -> CoverageReport:
    """For scopes: makes the report from the drivers' counts."""
    rows = [_row("backward" if node else "forward", name, seen, skipped) for name, node, seen, skipped in counts]
    rows.sort(key=lambda row: (row.phase == "backward", -row.seen, -row.dispatched, row.operator))
    return CoverageReport(tuple(rows))


def _row(phase: Phase, operator: str, seen: int, skipped: Mapping[str, int]) -> CoverageRow:
    in_order = {reason: skipped[reason] for reason in REASONS if skipped.get(reason)}
    return CoverageRow(phase, operator, seen + sum(in_order.values()), seen, MappingProxyType(in_order))


def _texts(row: CoverageRow) -> list[str]:
    return [row.operator, str(row.dispatched), str(row.seen), _reasons(row)]


def _reasons(row: CoverageRow) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in row.skipped.items())
