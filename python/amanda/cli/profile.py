"""`amanda profile` runs a program, and prints its source code with what each line costs."""

from __future__ import annotations

import argparse
import time

from amanda.cli import program_arguments, result_files
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report
from amanda.cli.program import Program
from amanda.cli.stack_samples import PYTHON, StackSamples
from amanda.reports.answers import code_of, seconds
from amanda.reports.columns import name_column
from amanda.reports.rich_table import Column, rich_table
from amanda.reports.source_files import is_library, line_of_code
from amanda.tools.profile import GroupBy, Profile
from amanda.tools.profile.answer import MOST
from amanda.tools.profile.rows import LISTING_COLUMNS

GROUPS = ["line", "op", "module", "id"]
LEAST = 0.01  # of the program's time: smaller parts are not named
LIBRARY_LINES = 8


class ProfileLines(Command):
    """`amanda profile`."""

    name = "profile"
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
        samples, began = StackSamples(), time.perf_counter()

        def report(made: Report, status: object) -> None:
            took = time.perf_counter() - began
            with made.part("print the table"):
                more = " (see --by module)" if "in modules" in tool.answer() and given.by == "line" else ""
                print(f"\n{tool.answer()}{more}\n{_rest(tool, samples, took)}\n")
                if given.by == "line":
                    print(tool.annotate(libraries=given.libraries))
                    if not given.libraries:
                        print(f"\n{_lines_inside(tool)}", end="")
                else:
                    print(tool.table(given.by, top=given.top))
            title = f"Cost by line: {' '.join(program.argv)}"
            result_files.write(files, tool, by, made, lambda path: tool.write_html(path, title=title))

        return run_under(tool, program, given, report, shown=samples)


def _rest(tool: Profile, samples: StackSamples, took: float) -> str:
    """Where the program's time went outside operators, as far as samples of its stack show."""
    inside = sum(row.total_ns for row in tool.rows("op")) / 1e9
    parts = samples.parts(tool.spans(samples.native_id))
    if tool.dropped_events:  # then samples cannot distinguish operators from Python
        others = sum(part.seconds for part in parts if part.what != PYTHON)
        rest = max(took - inside - others, 0.0)
        parts = [part._replace(seconds=rest) if part.what == PYTHON else part for part in parts]
    texts = [f"{seconds(inside)} operators"]
    for part in parts:
        if part.seconds >= LEAST * took:
            most = f" (most at {line_of_code(part.line)})" if part.line else ""
            texts.append(f"{seconds(part.seconds)} {part.what}{most}")
    return f"the program took {seconds(took)}: {', '.join(texts)}"


def _lines_inside(tool: Profile) -> str:
    """The lines of libraries that the time of one line of the program is in, if it holds most; "" if it does not."""
    first = next(iter(tool.rows("user_line")), None)
    if first is None or first.share < MOST:
        return ""
    lines = [row for row in tool.inside(first.name) if is_library(row.name)]
    if sum(row.share for row in lines) < MOST * first.share:
        return ""
    columns = [name_column("line"), *LISTING_COLUMNS, Column("source", lambda row: code_of(row.name), left=True)]
    table = rich_table("profile", columns, lines, top=LIBRARY_LINES)
    return f"lines of libraries that {line_of_code(first.name)} calls (--libraries lists all):\n{table}\n"
