"""`amanda trace` runs a program, and evaluates expressions at its operators."""

from __future__ import annotations

import argparse
import dataclasses
import json
import typing
from typing import Any

from amanda.cli import program_arguments
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report
from amanda.cli.live_table import live
from amanda.cli.program import Program
from amanda.tools.trace import GroupBy, Trace
from amanda.tools.trace.rows import DEFAULT

GROUPS = typing.get_args(GroupBy)
LIVE_ROWS = 15


class TraceExpressions(Command):
    """`amanda trace`."""

    name = "trace"
    description = (
        "Runs a program, evaluates expressions at its operators, and prints their values, aggregated. Its exit "
        "status is the program's."
    )
    example = "amanda trace -e 'linear: input.abs().max()' -e '*: output.isnan().sum()' --by module train.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        option = parser.add_argument
        option(
            "-e",
            dest="expressions",
            action="append",
            required=True,
            metavar="EXPRESSION",
            help="operators, a colon, and Python over their operands; may be given several times",
        )
        option("--by", choices=GROUPS, default="module", help="what a row is (default: %(default)s)")
        option(
            "--every", type=int, default=1, metavar="N", help="only each N-th execution of an operator (default: all)"
        )
        option("--aggregate", default=",".join(DEFAULT), metavar="NAMES", help="of the values (default: %(default)s)")
        option("--top", type=int, help="how many rows (default: all)")
        option("--json", metavar="FILE", help="writes all rows there instead of printing a table")

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints the table, or writes its rows to a file."""
        names: Any = [name.strip() for name in given.aggregate.split(",")]
        tool = Trace(*given.expressions, by=given.by, every=given.every, aggregate=names)
        file = program_arguments.output_file(given.json)

        def report(made: Report, status: object) -> None:
            if file is None:
                with made.part("print the table"):
                    print(f"\n{tool.table(top=given.top)}")
            else:
                with made.part(f"write {file.name!r}"), file:
                    json.dump([dataclasses.asdict(row) for row in tool.rows()], file, indent=1)

        return run_under(tool, program, given, report, shown=live(lambda: tool.table(top=LIVE_ROWS)))
