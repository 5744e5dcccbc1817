"""`amanda trace` runs a program, and evaluates expressions at its operators."""

from __future__ import annotations

import argparse
import dataclasses
import json
import typing
from typing import IO, Any

from amanda import scope
from amanda.cli import program_arguments
from amanda.cli.live_table import live
from amanda.cli.program import Program
from amanda.cli.run_report import Report, run_and_report
from amanda.tools.trace import GroupBy, Trace
from amanda.tools.trace.rows import DEFAULT

GROUPS = typing.get_args(GroupBy)
LIVE_ROWS = 15


def add(commands: Any) -> None:
    """Adds the command `amanda trace`."""
    command: argparse.ArgumentParser = commands.add_parser(
        "trace",
        help="expressions over the operands of a program's operators",
        description="Runs a program, evaluates expressions at its operators, and prints their values, aggregated. Its exit "
        "status is the program's.",
        epilog="example: amanda trace -e 'linear: input.abs().max()' -e '*: output.isnan().sum()' --by module train.py",
    )
    add_options(command)
    command.add_argument("--top", type=int, help="how many rows (default: all)")
    command.add_argument("--json", metavar="FILE", help="writes all rows there instead of printing a table")
    program_arguments.add(command)

    def execute(given: argparse.Namespace) -> None:
        program = program_arguments.required(command, given)
        try:
            tool = tool_of(given)
        except ValueError as error:
            command.error(str(error))
        file = program_arguments.output_file(command, given.json)
        run(program, tool, program_arguments.options(given), given.top, file, given.strict)

    command.set_defaults(run=execute)


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-e",
        dest="expressions",
        action="append",
        required=True,
        metavar="EXPRESSION",
        help="operators, a colon, and Python over their operands; may be given several times",
    )
    command.add_argument("--by", choices=GROUPS, default="module", help="what a row is (default: %(default)s)")
    command.add_argument(
        "--every", type=int, default=1, metavar="N", help="only each N-th execution of an operator (default: all)"
    )
    command.add_argument(
        "--aggregate", default=",".join(DEFAULT), metavar="NAMES", help="of the values (default: %(default)s)"
    )


def tool_of(given: argparse.Namespace) -> Trace:
    """The tool for these options. Raises `ValueError`: one of them is wrong."""
    names: Any = [name.strip() for name in given.aggregate.split(",")]
    return Trace(*given.expressions, by=given.by, every=given.every, aggregate=names)


def run(
    program: Program, tool: Trace, options: dict[str, Any], top: int | None, file: IO[str] | None, strict: bool
) -> None:
    """Runs a program in a scope with these options, and prints the table of `tool`, or writes its rows to `file`.

    Raises:
        SystemExit: the program's own; or 1 where another exception has ended it, which is printed as Python does.
    """

    def report(made: Report, status: object) -> None:
        if file is None:
            with made.part("print the table"):
                print(f"\n{tool.table(top=top)}")
        else:
            with made.part(f"write {file.name!r}"), file:
                json.dump([dataclasses.asdict(row) for row in tool.rows()], file, indent=1)

    entered = scope.apply(tool, **options, coverage=strict)
    run_and_report(program, entered, report, shown=live(lambda: tool.table(top=LIVE_ROWS)), strict=strict)
