"""`amanda memory` runs a program, and prints what was in memory at the peak, or when an operator got no more."""

from __future__ import annotations

import argparse
import typing

from amanda.cli import program_arguments, result_files
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report
from amanda.cli.program import Program
from amanda.tools.memory import GroupBy, PeakMemory

GROUPS = typing.get_args(GroupBy)
TOP = 20
FILES = ("html", "json")
"""The files that it writes, and the packages that they need."""


class Memory(Command):
    """`amanda memory`."""

    name = "memory"
    description = (
        "Runs a program, and prints what was in memory when most of it was in use: by kind, and by the line "
        "that made it. If an operator gets no memory, also what was there then. Its exit status is the program's."
    )
    example = "amanda memory --html memory.html train.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        option = parser.add_argument
        option("--by", choices=GROUPS, default="line", help="what a row of the second table is (default: line)")
        option("--top", type=int, default=TOP, help="how many rows of it (default: %(default)s)")
        option(
            "--growth",
            action="store_true",
            help="also what each step leaves behind: how much, which line made it, and which variable keeps it",
        )
        option("--html", metavar="FILE", help="writes a page there: tables, memory over time")
        option("--json", metavar="FILE", help="writes all rows by operator there")

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints what was in memory, and writes the files."""
        files = program_arguments.files_of(given, FILES)
        tool = PeakMemory(growth=given.growth)

        def report(made: Report, status: object) -> None:
            with made.part("print the tables"):
                print(f"\n{tool.answer()}")
                if tool.growth is not None and tool.growth.rows():
                    print(tool.growth.table(top=given.top))
                print(tool.table("kind"))
                if given.by != "kind":
                    print(tool.table(given.by, given.top))
                if tool.at_error is not None:
                    print(f"{tool.at_error.when}:\n{tool.at_error.table('kind')}")
                    if given.by != "kind":
                        print(tool.at_error.table(given.by, given.top))
            title = f"Memory at the peak: {' '.join(program.argv)}"
            result_files.write(files, tool, "id", made, lambda path: tool.write_html(path, title=title))

        return run_under(tool, program, given, report)
