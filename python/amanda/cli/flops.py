"""`amanda flops` runs a program, and prints how many floating point operations its operators take."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Mapping
from typing import Any

from amanda import scope
from amanda.cli import program_arguments, result_files
from amanda.cli.program import Program
from amanda.cli.run_report import Report, run_and_report
from amanda.tools.flops import Flops, GroupBy

GROUPS = typing.get_args(GroupBy)
TOP = 20
LISTED = 5


def add(commands: Any) -> None:
    """Adds the command `amanda flops`."""
    command: argparse.ArgumentParser = commands.add_parser(
        "flops",
        help="floating point operations by module and by operator, forward and backward",
        description="Runs a program, and prints how many floating point operations its matrix products, convolutions and "
        "attention take, by the conventions of PyTorch's FlopCounterMode. Its exit status is the program's.",
        epilog="example: amanda flops --by module --top 10 train.py",
    )
    add_options(command)
    program_arguments.add(command)

    def execute(given: argparse.Namespace) -> None:
        program = program_arguments.required(command, given)
        try:
            files = program_arguments.files_of(given, result_files.FILES)
        except (ValueError, OSError, ImportError) as error:
            command.error(str(error))
        run(program, files, given, program_arguments.options(given))

    command.set_defaults(run=execute)


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--by", choices=GROUPS, default="both", help="what a row is: operator type and module, or one (default: both)"
    )
    command.add_argument("--top", type=int, default=TOP, help="how many rows of the table (default: %(default)s)")
    command.add_argument(
        "--cpu-attention", action="store_true", help="counts fused attention on the CPU, too, as on other devices"
    )
    result_files.add_options(command, "all tables")


def run(program: Program, files: Mapping[str, str], given: argparse.Namespace, options: dict[str, Any]) -> None:
    """Runs a program in a scope with these options, prints what was counted, largest first, and writes the files.

    Raises:
        SystemExit: the program's own; or 1 where another exception has ended it, which is printed as Python does.
    """
    tool = Flops(cpu_attention=given.cpu_attention)

    def write_html(path: str) -> None:
        from amanda.reports.html_page import HtmlPage  # here: it imports jinja2

        page = HtmlPage(f"Floating point operations: {' '.join(program.argv)}", summary(tool))
        for by in GROUPS:
            page.add_results(f"by {by}", tool, by)
        page.write(path)

    def report(made: Report, status: object) -> None:
        with made.part("print the table"):
            print(f"\n{tool.table(given.by, given.top, sort='flops')}\n{summary(tool)}")
        result_files.write(files, tool, given.by, made, write_html)

    run_and_report(program, scope.apply(tool, **options, coverage=given.strict), report, strict=given.strict)


def summary(tool: Flops) -> str:
    """The sums, and the operators in which nothing was counted. Those of them that multiply are below the table."""
    rows = tool.rows("op")
    backward = sum(row.flops for row in rows if row.backward)
    forward = sum(row.flops for row in rows) - backward
    products = tool.uncounted_products
    uncounted = sorted(
        ((name, calls) for name, calls in tool.uncounted.items() if name not in products), key=lambda item: -item[1]
    )
    listed = ", ".join(f"{name} {count:,}" for name, count in uncounted[:LISTED])
    more = f" and {len(uncounted) - LISTED} more types" if len(uncounted) > LISTED else ""
    nothing = f"\nnothing was counted in (calls): {listed}{more}" if uncounted else ""
    return f"{forward / 1e6:,.3f} MFLOP forward, {backward / 1e6:,.3f} MFLOP backward{nothing}"
