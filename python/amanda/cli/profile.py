"""`amanda profile` runs a program, and prints its source code with what each line costs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from amanda import scope
from amanda.cli import program_arguments, result_files
from amanda.cli.program import Program
from amanda.cli.run_report import Report, run_and_report
from amanda.tools.profile import GroupBy, Profile

GROUPS = ["line", "op", "module", "id"]


def add(commands: Any) -> None:
    """Adds the command `amanda profile`."""
    command: argparse.ArgumentParser = commands.add_parser(
        "profile",
        help="which lines of a program its time goes to, forward and backward",
        description="Runs a program, and prints the source code of its files with what each line costs: calls of "
        "operators, time, share, bytes. Its exit status is the program's.",
        epilog="example: amanda profile --backward --html page.html train.py",
    )
    add_options(command)
    program_arguments.add(command)

    def execute(given: argparse.Namespace) -> None:
        program = program_arguments.required(command, given)
        try:
            tool, files = tool_of(given), program_arguments.files_of(given, result_files.FILES)
        except (ValueError, OSError, ImportError) as error:
            command.error(str(error))
        run(program, tool, files, given, program_arguments.options(given))

    command.set_defaults(run=execute)


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--by",
        choices=GROUPS,
        default="line",
        help="what a row is: by line, the source code is printed (default: line)",
    )
    command.add_argument(
        "--backward", action="store_true", help="backward operators, too, at the line that created them"
    )
    command.add_argument(
        "--skip",
        type=int,
        default=0,
        metavar="N",
        help="leaves out the first N executions of each operator, which take longer (default: 0)",
    )
    command.add_argument("--top", type=int, help="how many rows of a table (default: all)")
    command.add_argument(
        "--libraries",
        action="store_true",
        help="lines of installed packages, too; without it, what they call counts for the line that called them",
    )
    result_files.add_options(command, "charts, tables, source code")


def tool_of(given: argparse.Namespace) -> Profile:
    """The tool for these options. Raises `ValueError`: one of them is wrong."""
    if given.skip < 0:
        raise ValueError(f"argument --skip: expected 0 or more, got {given.skip}")
    return Profile(skip=given.skip, backward=given.backward)


def run(
    program: Program, tool: Profile, files: Mapping[str, str], given: argparse.Namespace, options: dict[str, Any]
) -> None:
    """Runs a program in a scope with these options, prints what it cost, and writes the files.

    Raises:
        SystemExit: the program's own; or 1 where another exception has ended it, which is printed as Python does.
    """
    began = time.perf_counter()
    by: GroupBy = "user_line" if given.by == "line" and not given.libraries else given.by

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

    run_and_report(program, scope.apply(tool, **options, coverage=given.strict), report, strict=given.strict)


def _summary(tool: Profile, seconds: float) -> str:
    """Where the program's time went: there may be more of it outside of operators."""
    rows = tool.rows("op")
    inside = sum(row.total_ns for row in rows) / 1e9
    backward = sum(row.backward_ns for row in rows) / 1e9
    ours = f"operators took {inside:.2f} s" + (f" ({backward:.2f} s of them backward)" if backward else "")
    return f"{ours} of the program's {seconds:.2f} s, its imports included"
