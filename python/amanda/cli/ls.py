"""`amanda ls` runs a program, and lists the operators that it ran."""

from __future__ import annotations

import dataclasses
import json
from typing import IO, Any

from amanda import scope
from amanda.cli.program import Program
from amanda.program_points import PointsTool
from amanda.reports import plain_table
from amanda.reports.point_table import Sort


def list_points(
    program: Program, tool: PointsTool, options: dict[str, Any], sort: Sort, top: int | None, file: IO[str] | None
) -> None:
    """Runs a program in a scope with these options, and prints the points that `tool` saw, or writes them to `file`.

    Raises:
        SystemExit: the program's own; or 1 where another exception has ended it, which is printed as Python does.
    """
    status = program.run_in(scope.apply(tool, **options))
    points = tool.points()
    if file is None:
        print(f"\n{points.table(sort, top, plain_table.terminal_width())}", flush=True)
    else:
        with file:
            json.dump([dataclasses.asdict(row) for row in points.rows()], file, indent=1)
    if status is not None:
        raise SystemExit(status)
