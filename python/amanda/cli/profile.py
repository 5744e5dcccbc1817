"""`amanda profile` runs a program, and prints its source code with what each line costs."""

from __future__ import annotations

import argparse
import time

from amanda.cli import program_arguments, result_files
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report
from amanda.cli.program import Program
from amanda.tools.profile import GroupBy, Profile

GROUPS = ["line", "op", "module", "id"]


class ProfileLines(Command):
    """`amanda profile`."""

    name = "profile"
    help = "which lines of a program its time goes to, forward and backward"
    description = (
        "Runs a program, and prints the source code of its files with what each line costs: calls of "
        "operators, time, share, bytes. Its exit status is the program's."
    )
    example = "amanda profile --backward --html page.html train.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        option = parser.add_argument
        option(
            "--by",
            choices=GROUPS,
            default="line",
            help="what a row is: by line, the source code is printed (default: line)",
        )
        option("--backward", action="store_true", help="backward operators, too, at the line that created them")
        option(
            "--skip",
            type=int,
            default=0,
            metavar="N",
            help="leaves out the first N executions of each operator, which take longer (default: 0)",
        )
        option("--top", type=int, help="how many rows of a table (default: all)")
        option(
            "--libraries",
            action="store_true",
            help="lines of installed packages, too; without it, what they call counts for the line that called them",
        )
        result_files.add_options(parser, "charts, tables, source code")

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints what the program cost, and writes the files."""
        if given.skip < 0:
            raise ValueError(f"argument --skip: expected 0 or more, got {given.skip}")
        tool = Profile(skip=given.skip, backward=given.backward)
        files = program_arguments.files_of(given, result_files.FILES)
        by: GroupBy = "user_line" if given.by == "line" and not given.libraries else given.by
        began = time.perf_counter()

        def report(made: Report, status: object) -> None:
            seconds = time.perf_counter() - began
            with made.part("print the table"):
                if given.by == "line":
                    print(f"\n{tool.annotate(libraries=given.libraries)}")
                else:
                    print(f"\n{tool.table(given.by, top=given.top)}", end="")
                print(f"\n{_summary(tool, seconds)}")
            title = f"Cost by line: {' '.join(program.argv)}"
            result_files.write(files, tool, by, made, lambda path: tool.write_html(path, title=title))

        return run_under(tool, program, given, report)


def _summary(tool: Profile, seconds: float) -> str:
    """Where the program's time went: there may be more of it outside of operators."""
    rows = tool.rows("op")
    inside = sum(row.total_ns for row in rows) / 1e9
    backward = sum(row.backward_ns for row in rows) / 1e9
    ours = f"operators took {inside:.2f} s" + (f" ({backward:.2f} s of them backward)" if backward else "")
    return f"{ours} of the program's {seconds:.2f} s, its imports included"
