"""`amanda ls` runs a program, and lists the operators that it ran."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
from collections.abc import Sequence

from amanda.cli import export_diff, program_arguments
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report
from amanda.cli.program import Program
from amanda.core.evidence import counted
from amanda.core.program_points import PointsTool
from amanda.reports import point_table
from amanda.reports.source_files import line_of_code
from amanda.reports.terminal import terminal_width


class Ls(Command):
    """`amanda ls`."""

    name = "ls"
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
        option(
            "--against-onnx",
            metavar="FILE",
            help="lists what became of each operator in the ONNX file that was exported of the program's model",
        )
        option("--against-pt2", metavar="FILE", help="and in this file of torch.export; with --against-onnx")
        option(
            "--times",
            type=int,
            metavar="RUNS",
            help="and their times: runs the model and the file this often again; with --against-onnx",
        )
        option("--html", metavar="FILE", help="writes a page there, too; with --against-onnx")

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints the points that ran, or writes them to a file."""
        if given.against_onnx:
            return export_diff.forms_job(program, given)
        for name in ("against_pt2", "times", "html"):
            if getattr(given, name) is not None:
                raise ValueError(f"argument --{name.replace('_', '-')}: it goes with --against-onnx")
        names = [name for names in given.ops for name in names.split(",")] if given.ops else None
        try:
            tool = PointsTool(names)
        except ValueError as error:
            raise ValueError(f"argument --ops: {error}") from None
        file = program_arguments.output_file(given.json)

        def report(made: Report, status: object) -> None:
            if file is None:
                with made.part("print the table"):
                    answer = _answer(tool.points().rows())
                    print(f"\n{answer}\n\n" if answer else "\n", end="")
                    print(f"{tool.points().table(given.sort, given.top, terminal_width())}")
            else:
                with made.part(f"write {file.name!r}"), file:
                    json.dump([dataclasses.asdict(row) for row in tool.points().rows()], file, indent=1)

        return run_under(tool, program, given, report)


def _answer(rows: Sequence[point_table.Point]) -> str:
    """How many operators ran, which most often, and at which line most of them are."""
    if not rows:
        return ""
    runs, lines = collections.Counter[str](), collections.Counter[str]()
    for row in rows:
        runs[row.operator] += row.runs if not row.backward_operator else 0
        lines[row.source] += 1
    name, count = runs.most_common(1)[0]
    line, here = lines.most_common(1)[0]
    most = f"most of them, {here:,}, are" if len(rows) > 1 else "it is"
    where = f"; {most} at {line_of_code(line)}" if line else ""
    return f"operators ran at {counted(len(rows), 'place')}{where}; most often {name}, {counted(count, 'time')}"
