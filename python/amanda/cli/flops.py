"""`amanda flops` runs a program, and prints how many floating point operations its operators take."""

from __future__ import annotations

import argparse
import typing

from amanda.cli import program_arguments, result_files
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report
from amanda.cli.program import Program
from amanda.reports.answers import main_part, percent
from amanda.tools.flops import Flops, GroupBy

GROUPS = typing.get_args(GroupBy)
TOP = 20
LISTED = 5


class CountFlops(Command):
    """`amanda flops`."""

    name = "flops"
    description = (
        "Runs a program, and prints how many floating point operations its matrix products, convolutions and "
        "attention take, by the conventions of PyTorch's FlopCounterMode. Its exit status is the program's."
    )
    example = "amanda flops --by module --top 10 train.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        option = parser.add_argument
        option(
            "--by",
            choices=GROUPS,
            default="both",
            help="what a row is: operator type and module, or one (default: both)",
        )
        option("--top", type=int, default=TOP, help="how many rows of the table (default: %(default)s)")
        option(
            "--cpu-attention", action="store_true", help="counts fused attention on the CPU, too, as on other devices"
        )
        result_files.add_options(parser, "all tables")

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints what was counted, largest first, and writes the files."""
        files = program_arguments.files_of(given, result_files.FILES)
        tool = Flops(cpu_attention=given.cpu_attention)

        def write_html(path: str) -> None:
            from amanda.reports.html_page import HtmlPage  # here: it imports jinja2

            page = HtmlPage(f"Floating point operations: {' '.join(program.argv)}", summary(tool))
            for by in GROUPS:
                page.add_results(f"by {by}", tool, by)
            page.write(path)

        def report(made: Report, status: object) -> None:
            with made.part("print the table"):
                print(f"\n{summary(tool)}{_most(tool)}\n{tool.table(given.by, given.top, sort='flops')}")
            result_files.write(files, tool, given.by, made, write_html)

        return run_under(tool, program, given, report)


def summary(tool: Flops) -> str:
    """The sums, and the operators in which nothing was counted. Those of them that multiply are below the table."""
    if not tool.evidence().operators:
        return "nothing was counted: no operator ran"
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


def _most(tool: Flops) -> str:
    """Where most of it is."""
    module, share = main_part([(row.module_path, row.flops) for row in tool.rows("both")])
    return f"\n{percent(share)} of it in module{'s' * ('*' in module)} {module}" if module else ""
