"""`amanda diff` records a run of a program, and compares another run with a record, or two records."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amanda import scope
from amanda.cli import program_arguments
from amanda.cli.live_table import live
from amanda.cli.program import Program
from amanda.reports.progress import live_bar
from amanda.tools.diff import CausalDiff, RecordDiff, Recorder
from amanda.tools.diff.differences import Differences
from amanda.tools.diff.record import is_record
from amanda.tools.diff.rows import COLUMNS

DIFFERS = 1
FAILED = 3  # a program; argparse has 2
FILES = {"html": ("jinja2", "rich", "plotly"), "json": ()}
"""The files that it writes, and the packages that they need."""


def add(commands: Any) -> None:
    """Adds the command `amanda diff`."""
    command: argparse.ArgumentParser = commands.add_parser(
        "diff",
        help="which operators cause the difference between two runs",
        description="Records what every operator of a program returns, and compares another run with it: a.py and then "
        "b.py, or --record a folder, and later --against it; or two such folders. Each result that differs is replaced by "
        "the reference's, so that only causes are listed. The exit status is 0 if nothing differs, 1 if something does, 2 "
        "for mistakes in the command line or the record, and 3 if a program fails.",
        epilog="example: amanda diff before.py after.py",
    )
    add_options(command)
    program_arguments.add(command)

    def execute(given: argparse.Namespace) -> None:
        other = None
        if not given.record and not given.against:
            if len(given.program) < 2:
                command.error("expected two scripts; or --record or --against, and a script")
            if all(map(is_record, given.program)) and len(given.program) == 2:
                return compare(given, lambda: compare_records(given))
            other = given.program.pop(0)
        program = program_arguments.required(command, given)
        compare(given, lambda: run(program, other, given, program_arguments.options(given)))

    def compare(given: argparse.Namespace, compared: Callable[[], None]) -> None:
        try:
            vars(given).update(program_arguments.files_of(given, FILES))
            if not given.record:
                program_arguments.check_rich()
            compared()
        except (ValueError, ImportError, OSError) as error:
            command.error(str(error))

    command.set_defaults(run=execute)


def add_options(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group()
    which.add_argument("--record", metavar="FOLDER", help="records the program there")
    which.add_argument("--against", metavar="FOLDER", help="compares the program with the record there")
    for name in ("rtol", "atol"):
        command.add_argument(f"--{name}", type=float, help="what is tolerated (default: 0 within a dtype)")
    command.add_argument(
        "--close", action="store_true", help="tolerates what torch.testing.assert_close does for each dtype"
    )
    command.add_argument(
        "--float64", action="store_true", help="tells how far both results are from what float64 inputs give"
    )
    command.add_argument("--top", type=int, help="how many rows (default: all)")
    command.add_argument("--json", metavar="FILE", help="writes all rows there, too")
    command.add_argument("--html", metavar="FILE", help="writes a page there, too")


def run(program: Program, other: str | None, given: argparse.Namespace, options: dict[str, Any]) -> None:
    """Records `program`, or compares it with a record: of the script `other`, if there is one.

    Raises:
        SystemExit: `DIFFERS`, or `FAILED`: a program.
        ValueError: there is no record, or a tolerance is negative.
        OSError: a record cannot be written or read.
    """
    if given.record:
        _end(program.argv[0], _record(program, of_rank(given.record), options))
    elif other is None:
        folder = given.against if is_record(given.against) else of_rank(given.against)
        _compare(program, folder, given, options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "amanda", "diff", "--record", folder]
            scoped = [f"--{name}={value}" for name, value in options.items()]
            done = subprocess.run([*command, *scoped, other, *program.argv[1:]])
            if done.returncode:
                _end(other, done.returncode, is_told=done.returncode == FAILED)
            _compare(program, folder, given, options)


def compare_records(given: argparse.Namespace) -> None:
    """Raises as `run`."""
    reference, record = given.program
    diff = RecordDiff(reference, record, rtol=given.rtol, atol=given.atol, close=given.close)
    if _report(diff, f"{reference} {record}", given):
        raise SystemExit(DIFFERS)


def of_rank(folder: str) -> str:
    """Its own folder for each of the processes that a launcher such as torchrun has started."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return os.fspath(Path(folder) / f"rank{os.environ['RANK']}")
    return folder


def _record(program: Program, folder: str, options: dict[str, Any]) -> object:
    with Recorder(folder) as recorder:
        script = program.argv[0]
        shown = live_bar(
            None, lambda: recorder.executions, lambda: f"recording {script}, {recorder.bytes / 1e6:,.0f} MB of results"
        )
        with live(shown):
            return program.run_in(scope.apply(recorder, **options))


def _compare(program: Program, folder: str, given: argparse.Namespace, options: dict[str, Any]) -> None:
    tool = CausalDiff(folder, rtol=given.rtol, atol=given.atol, close=given.close, float64=given.float64)
    script = program.argv[0]
    with live(live_bar(tool.recorded, lambda: tool.compared, lambda: f"comparing {script}")):
        status = program.run_in(scope.apply(tool, **options))
    differs = _report(tool, " ".join(program.argv), given)
    _end(script, status)
    if differs:
        raise SystemExit(DIFFERS)


def _report(diff: Differences, title: str, given: argparse.Namespace) -> bool:
    rows = diff.rows()
    summary = f"{len(rows)} difference{'s' * (len(rows) != 1)}"
    print(f"\n{diff.table(top=given.top)}\n{summary}" if rows else f"\n{summary}", flush=True)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump([dataclasses.asdict(row) for row in rows], file, indent=1)
    if given.html:
        from amanda.reports.html_page import HtmlPage

        page = HtmlPage("Two runs compared", f"{title}\n{summary}\n{diff.parting or ''}".rstrip())
        page.add_table("Causes", COLUMNS, rows)
        page.write(given.html)
    return bool(rows)


def _end(script: str, status: object, *, is_told: bool = False) -> None:
    """Raises `SystemExit`, if a program has failed."""
    if status is None or status == 0:
        return
    if not is_told:
        if not isinstance(status, int):  # as Python does with a text
            print(status, file=sys.stderr)
            status = 1
        print(f"amanda diff: {script} ended with status {status}", file=sys.stderr)
    raise SystemExit(FAILED)
