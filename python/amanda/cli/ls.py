"""`amanda ls` runs a program, and lists the operators that it ran."""

from __future__ import annotations

import argparse
import dataclasses
import json

from amanda.cli import program_arguments
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report
from amanda.cli.program import Program
from amanda.core.program_points import PointsTool
from amanda.reports import point_table
from amanda.reports.rich_table import terminal_width


class Ls(Command):
    """`amanda ls`."""

    name = "ls"
    help = "the operators that a program runs, and where"
    description = (
        "Runs a program, and lists the operators that it ran, forward and backward: how often, in which "
        "module, at which line, the dtypes and shapes of the first run, and the id. Its exit status is the program's."
    )
    example = "amanda ls --ops 'conv2d,*norm*' --sort runs --top 20 train.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        option = parser.add_argument
        option(
            "--ops",
            action="append",
            metavar="NAMES",
            help="only these, as ops= in a tool: conv2d,*norm* (default: all)",
        )
        option(
            "--sort",
            choices=point_table.SORTS,
            default="order",
            help="of the rows (default: %(default)s, of first runs)",
        )
        option("--top", type=int, help="how many rows (default: all)")
        option("--json", metavar="FILE", help="writes all rows there instead of printing a table")

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints the points that ran, or writes them to a file."""
        names = [name for names in given.ops for name in names.split(",")] if given.ops else None
        try:
            tool = PointsTool(names)
        except ValueError as error:
            raise ValueError(f"argument --ops: {error}") from None
        file = program_arguments.output_file(given.json)

        def report(made: Report, status: object) -> None:
            if file is None:
                with made.part("print the table"):
                    print(f"\n{tool.points().table(given.sort, given.top, terminal_width())}")
            else:
                with made.part(f"write {file.name!r}"), file:
                    json.dump([dataclasses.asdict(row) for row in tool.points().rows()], file, indent=1)

        return run_under(tool, program, given, report)
