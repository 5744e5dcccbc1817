"""`amanda diff` records a run of a program, and compares another run with a record."""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from typing import Any

from amanda import scope
from amanda.cli.program import Program
from amanda.tools.diff import CausalDiff, Recorder
from amanda.tools.diff.rows import COLUMNS


def add_options(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group()
    which.add_argument("--record", metavar="FOLDER", help="records the program there")
    which.add_argument("--against", metavar="FOLDER", help="compares the program with the record there")
    for name in ("rtol", "atol"):
        command.add_argument(f"--{name}", type=float, help="what is tolerated (default: 0 within a dtype)")
    command.add_argument("--top", type=int, help="how many rows (default: all)")
    command.add_argument("--json", metavar="FILE", help="writes all rows there, too")
    command.add_argument("--html", metavar="FILE", help="writes a page there, too")


def run(program: Program, other: str | None, given: argparse.Namespace, options: dict[str, Any]) -> None:
    """Records `program`, or compares it with a record: of the script `other`, if there is one.

    Raises:
        SystemExit: the program's own, or 1: something differs.
        ValueError: there is no record, or a tolerance is negative.
        OSError: a record cannot be written or read.
    """
    if given.record:
        _end(_record(program, given.record, options))
    elif other is None:
        _compare(program, given.against, given, options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "amanda", "diff", "--record", folder]
            scoped = [f"--{name}={value}" for name, value in options.items()]
            done = subprocess.run([*command, *scoped, other, *program.argv[1:]])
            if done.returncode:
                print(f"amanda diff: {other} ended with status {done.returncode}", file=sys.stderr)
                raise SystemExit(done.returncode)
            _compare(program, folder, given, options)


def _record(program: Program, folder: str, options: dict[str, Any]) -> object:
    with Recorder(folder) as recorder:
        return program.run_in(scope.apply(recorder, **options))


def _compare(program: Program, folder: str, given: argparse.Namespace, options: dict[str, Any]) -> None:
    tool = CausalDiff(folder, rtol=given.rtol, atol=given.atol)
    status = program.run_in(scope.apply(tool, **options))
    rows = tool.rows()
    summary = f"{len(rows)} difference{'s' * (len(rows) != 1)}"
    print(f"\n{tool.table(top=given.top)}\n{summary}" if rows else f"\n{summary}", flush=True)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump([dataclasses.asdict(row) for row in rows], file, indent=1)
    if given.html:
        from amanda.reports.html_page import HtmlPage

        page = HtmlPage("Two runs compared", f"{' '.join(program.argv)}\n{summary}")
        page.add_table("Causes", COLUMNS, rows)
        page.write(given.html)
    _end(status)
    if rows:
        raise SystemExit(1)


def _end(status: object) -> None:
    if status is not None and status != 0:
        raise SystemExit(status)
