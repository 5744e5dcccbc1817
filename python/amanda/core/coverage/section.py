"""The coverage report as a section of a page."""

from __future__ import annotations

from amanda.core.coverage.reasons import REASONS
from amanda.core.coverage.report import CoverageReport, CoverageRow, Phase
from amanda.reports.rich_table import Column
from amanda.reports.sections import Table, table_of

HEADING = "coverage: what tools saw"


def section_of(report: CoverageReport) -> Table:
    """The calls of each operator type that tools saw. The caption has the sums, and the reasons why other calls were
    not seen."""
    phases: tuple[Phase, ...] = ("forward", "backward")
    totals = [report.total(phase) for phase in phases]
    lines = [f"{row.phase}: {row.dispatched:,} dispatched, {row.seen:,} seen" for row in totals]
    lines += [
        f"not seen, {reason}: {text}" for reason, text in REASONS.items() if any(reason in t.skipped for t in totals)
    ]
    return table_of(HEADING, _COLUMNS, report.rows, "\n".join(lines))


def _skipped(row: CoverageRow) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in row.skipped.items())


_COLUMNS = (
    Column("operator", lambda row: row.operator, left=True, field="operator"),
    Column("phase", lambda row: row.phase, left=True, field="phase"),
    Column("dispatched", lambda row: str(row.dispatched), field="dispatched"),
    Column("seen", lambda row: str(row.seen), field="seen"),
    Column("not seen", _skipped, left=True),
)
