"""`amanda ls` runs a program, and lists the operators that it ran."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import IO, Any

from amanda import scope
from amanda.cli import program_arguments
from amanda.cli.program import Program
from amanda.cli.run_report import Report, run_and_report
from amanda.program_points import PointsTool
from amanda.reports import point_table
from amanda.reports.point_table import Sort
from amanda.reports.rich_table import terminal_width


def add(commands: Any) -> None:
    """Adds the command `amanda ls`."""
    command: argparse.ArgumentParser = commands.add_parser(
        "ls",
        help="the operators that a program runs, and where",
        description="Runs a program, and lists the operators that it ran, forward and backward: how often, in which "
        "module, at which line, the dtypes and shapes of the first run, and the id. Its exit status is the program's.",
        epilog="example: amanda ls --ops 'conv2d,*norm*' --sort runs --top 20 train.py",
    )
    command.add_argument(
        "--ops", action="append", metavar="NAMES", help="only these, as ops= in a tool: conv2d,*norm* (default: all)"
    )
    command.add_argument(
        "--sort", choices=point_table.SORTS, default="order", help="of the rows (default: %(default)s, of first runs)"
    )
    command.add_argument("--top", type=int, help="how many rows (default: all)")
    command.add_argument("--json", metavar="FILE", help="writes all rows there instead of printing a table")
    program_arguments.add(command)

    def execute(given: argparse.Namespace) -> None:
        program = program_arguments.required(command, given)
        names = [name for names in given.ops for name in names.split(",")] if given.ops else None
        try:
            tool = PointsTool(names)
        except ValueError as error:
            command.error(f"argument --ops: {error}")
        file = program_arguments.output_file(command, given.json)
        list_points(program, tool, program_arguments.options(given), given.sort, given.top, file, given.strict)

    command.set_defaults(run=execute)


def list_points(
    program: Program,
    tool: PointsTool,
    options: dict[str, Any],
    sort: Sort,
    top: int | None,
    file: IO[str] | None,
    strict: bool,
) -> None:
    """Runs a program in a scope with these options, and prints the points that `tool` saw, or writes them to `file`.

    Raises:
        SystemExit: the program's own; or 1 where another exception has ended it, which is printed as Python does.
    """

    def report(made: Report, status: object) -> None:
        if file is None:
            with made.part("print the table"):
                print(f"\n{tool.points().table(sort, top, terminal_width())}")
        else:
            with made.part(f"write {file.name!r}"), file:
                json.dump([dataclasses.asdict(row) for row in tool.points().rows()], file, indent=1)

    run_and_report(program, scope.apply(tool, **options, coverage=strict), report, strict=strict)
