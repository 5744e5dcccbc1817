"""`amanda memory` runs a program, and prints what was in memory at the peak, or when an operator got no more."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Mapping
from typing import Any

from amanda import scope
from amanda.cli import program_arguments
from amanda.cli.program import Program
from amanda.cli.run_report import Report, run_and_report
from amanda.tools.memory import GroupBy, PeakMemory

GROUPS = typing.get_args(GroupBy)
TOP = 20
FILES = {"html": ("jinja2", "plotly"), "json": ()}
"""The files that it writes, and the packages that they need."""


def add(commands: Any) -> None:
    """Adds the command `amanda memory`."""
    command: argparse.ArgumentParser = commands.add_parser(
        "memory",
        help="what was in memory at the peak, which line made it, and what kept it",
        description="Runs a program, and prints what was in memory when most of it was in use: by kind, and by the line "
        "that made it. If an operator gets no memory, also what was there then. Its exit status is the program's.",
        epilog="example: amanda memory --html memory.html train.py",
    )
    add_options(command)
    program_arguments.add(command)

    def execute(given: argparse.Namespace) -> None:
        program = program_arguments.required(command, given)
        try:
            files = program_arguments.files_of(given, FILES)
        except (ValueError, OSError, ImportError) as error:
            command.error(str(error))
        run(program, files, given, program_arguments.options(given))

    command.set_defaults(run=execute)


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--by", choices=GROUPS, default="line", help="what a row of the second table is (default: line)"
    )
    command.add_argument("--top", type=int, default=TOP, help="how many rows of it (default: %(default)s)")
    command.add_argument("--html", metavar="FILE", help="writes a page there: tables, memory over time")
    command.add_argument("--json", metavar="FILE", help="writes all rows by operator there")


def run(program: Program, files: Mapping[str, str], given: argparse.Namespace, options: dict[str, Any]) -> None:
    """Runs a program in a scope with these options, prints what was in memory, and writes the files.

    Raises:
        SystemExit: the program's own; or 1 where another exception has ended it, which is printed as Python does.
    """
    tool = PeakMemory()

    def report(made: Report, status: object) -> None:
        with made.part("print the tables"):
            print(f"\n{tool.table('kind')}")
            if given.by != "kind":
                print(tool.table(given.by, given.top))
            if tool.at_error is not None:
                print(f"{tool.at_error.when}:\n{tool.at_error.table('kind')}")
                if given.by != "kind":
                    print(tool.at_error.table(given.by, given.top))
        for name, path in files.items():
            with made.part(f"write {path!r}"):
                if name == "html":
                    tool.write_html(path, title=f"Memory at the peak: {' '.join(program.argv)}")
                else:
                    tool.to_json(path, "id")

    run_and_report(program, scope.apply(tool, **options, coverage=given.strict), report, strict=given.strict)
