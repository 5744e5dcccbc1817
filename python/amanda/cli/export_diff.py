"""`amanda diff --against-onnx` compares a program with the ONNX file that was made of its model."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from amanda.cli import exported_program, program_arguments, statuses
from amanda.cli.command import Job, run_under
from amanda.cli.command_output import Report, program_failed
from amanda.core.evidence import counted

if TYPE_CHECKING:
    from amanda.cli.program import Program
    from amanda.tools.export_diff import ExportDiff

GroupBy = Literal["cause", "value", "unmatched", "form"]
FILES = ("json", "html")
CALLS = 3
TABLES: dict[GroupBy, str] = {
    "cause": "Causes",
    "value": "All values that were compared",
    "unmatched": "Values without a counterpart",
    "form": "What became of each operator",
}


def job(program: Program, given: argparse.Namespace, program_failed_status: int) -> Job:
    """The work. Nothing has run yet.

    Raises:
        ValueError: the file cannot be compared, or an option does not go with it.
        ImportError: onnx or onnxruntime is not installed.
        OSError: the file cannot be read.
    """
    for name in ("atol", "close", "float64"):
        if getattr(given, name):
            raise ValueError(f"argument --{name}: not with --against-onnx, whose tolerance is --rtol")
    files = program_arguments.files_of(given, FILES)
    from amanda.tools.export_diff import ExportDiff  # here: only this option needs it

    tool = ExportDiff(given.against_onnx, written=given.export, calls=given.calls or CALLS, rtol=given.rtol)
    title = f"{given.against_onnx} and {' '.join(program.argv)}"

    def report(made: Report, status: object) -> None:
        with made.part("print the table"):
            _print(tool, given.top)
        _write(tool, "cause", files, made, lambda path: _write_page(tool, title, path))
        if made.status is None:
            made.status = _status(tool)

    failed = functools.partial(program_failed, "diff", program.argv[0], own=program_failed_status)
    return run_under(tool, program, given, report, coverage=True, failed=failed)


def forms_job(program: Program, given: argparse.Namespace) -> Job:
    """The work of `amanda ls --against-onnx`: what became of each operator of the program in the file. Raises as `job`."""
    for name, default in (("ops", None), ("sort", "order")):
        if getattr(given, name) != default:
            raise ValueError(
                f"argument --{name}: not with --against-onnx, which lists the file's operators in their order"
            )
    if given.times is not None and given.times < 1:
        raise ValueError(f"argument --times: expected a positive number, got {given.times}")
    files = program_arguments.files_of(given, FILES)
    from amanda.tools.export_diff import ExportDiff

    exported = exported_program.loaded(given.against_pt2) if given.against_pt2 else None
    measures = given.times is not None
    tool = ExportDiff(given.against_onnx, calls=1, exported=exported, flops=True, times=measures)
    title = ", ".join(filter(None, [" ".join(program.argv), given.against_pt2, given.against_onnx]))

    def report(made: Report, status: object) -> None:
        if measures and tool.compared:
            with made.part("measure times"):
                tool.measure_times(given.times)
        if "json" not in files:
            with made.part("print the table"):
                print(f"\n{_forms_answer(tool)}", flush=True)
                if tool.rows("form"):
                    print(tool.table("form", top=given.top), flush=True)
        _write(tool, "form", files, made, lambda path: _write_forms_page(tool, title, path))

    return run_under(tool, program, given, report, coverage=True)


def _write(
    tool: ExportDiff, by: GroupBy, files: Mapping[str, str], made: Report, write_page: Callable[[str], object]
) -> None:
    """The files that options name."""
    if "json" in files:
        with made.part(f"write {files['json']!r}"), open(files["json"], "w", encoding="utf-8") as file:
            json.dump([dataclasses.asdict(row) for row in tool.rows(by)], file, indent=1)
    if "html" in files:
        with made.part(f"write {files['html']!r}"):
            write_page(files["html"])


def _forms_answer(tool: ExportDiff) -> str:
    rows = tool.rows("form")
    if not rows:
        return tool.answer()
    fused = sum(bool(row.fused_with) for row in rows)
    gone = sum(not row.optimized for row in rows)
    nodes = sum(len(row.written) for row in rows)
    subject = "result of modules" if tool.by_module else "operator"
    found = (
        f"{counted(len(rows), subject)} of the program became {counted(nodes, 'node')} of the file; ONNX Runtime fuses "
        f"{fused:,} of them with others, and needs no node for {gone:,}"
    )
    if all(each is not None for each in tool.flops):
        program, file = (f"{each / 1e6:,.4g}" for each in tool.flops if each is not None)
        found += f"\n{program} MFLOP in the program, {file} in the file"
    elif tool.uncounted:
        found += f"\nnot counted, may multiply: {', '.join(tool.uncounted)}"
    if tool.times is not None:
        runs, *sides = tool.times
        in_program, in_nodes = (f"{sum(each) / 1e6:,.4g}" for each in sides)
        found += (
            f"\n{in_program} ms in operators of the program, {in_nodes} in optimized nodes: medians of "
            f"{counted(runs, 'run')}; the time of a fused node belongs to several operators, and is in the row of each"
        )
    more = [f"not joined: {', '.join(tool.not_compared)}"] if tool.not_compared else []
    if unmatched := len(tool.rows("unmatched")):
        more.insert(
            0, f"{_without_counterpart(unmatched)}: their nodes are in the rows of the values that they lead to"
        )
    if tool.exported_unmatched:
        more.insert(
            0, f"without a counterpart in the program: {counted(tool.exported_unmatched, 'operator')} of the .pt2 file"
        )
    if tool.without_value and not tool.by_module:
        names = ", ".join(f"{name} {count:,}" for name, count in tool.without_value.items())
        more.insert(0, f"operators of the program whose results are no values of the file: {names}")
    return "\n".join([found, *more])


def _without_counterpart(count: int) -> str:
    return f"{count:,} values of the file have no counterpart in the program"


def _print(tool: ExportDiff, top: int | None) -> None:
    print(f"\n{tool.answer()}", flush=True)
    if tool.rows():
        print(tool.table(top=top), flush=True)
    unmatched = len(tool.rows("unmatched"))
    if unmatched:
        print(
            f"{_without_counterpart(unmatched)}: their nodes were compared as a part of the values that they lead to; "
            "--html lists them",
            flush=True,
        )


def _write_forms_page(tool: ExportDiff, title: str, path: str) -> None:
    from amanda.reports.html_page import HtmlPage

    page = HtmlPage("A program and its files", f"{title}\n{_forms_answer(tool)}")
    for by in ("form", "unmatched"):
        if tool.rows(by):
            page.add_results(TABLES[by], tool, by)
    page.write(path)


def _write_page(tool: ExportDiff, title: str, path: str) -> None:
    from amanda.reports.html_page import HtmlPage  # here: it imports jinja2

    page = HtmlPage("An export compared", f"{title}\n{tool.answer()}")
    for by, heading in TABLES.items():
        if tool.rows(by):
            page.add_results(heading, tool, by)
    page.write(path)


def _status(tool: ExportDiff) -> int | None:
    if tool.rows():
        return statuses.FOUND
    return None if tool.evidence().is_complete else statuses.NOT_LOOKED_AT
