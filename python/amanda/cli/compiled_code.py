"""The part of `amanda diff` for compiled code: `--compiled-code`, and the run of it that follows a comparison."""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from amanda.cli import program_end, statuses
from amanda.cli.command import Job
from amanda.cli.command_output import Report, program_failed, run_and_report
from amanda.cli.program import Program
from amanda.cli.sudden_end import before_sudden_end
from amanda.core.scope import apply
from amanda.tools.compiled_diff import CompiledDiff

FAILED = 5  # exit status: the program whose compiled code is compared


def job(program: Program, given: argparse.Namespace, files: Mapping[str, str]) -> Job:
    """Runs the program, and compares its compiled functions with the same operators run eagerly. Raises `ValueError`: a
    tolerance or a time is negative."""
    tool = CompiledDiff(rtol=given.rtol, atol=given.atol, close=given.close, seconds=given.seconds)

    def report(made: Report, status: object) -> None:
        rows = tool.rows()
        with made.part("print the table"):
            found = f"\n{tool.answer()}\n\n{tool.table(top=given.top)}" if rows else ""
            print(f"{found}\n{tool.summary}", flush=True)
        if "json" in files:
            with made.part(f"write {files['json']!r}"):
                tool.to_json(files["json"])
        if made.status is None:
            made.status = statuses.FOUND if rows else statuses.NOT_LOOKED_AT if tool.not_compared else None

    failed = functools.partial(program_failed, "diff", program.argv[0], own=FAILED)
    scope = apply(tool, compiled="graph")
    return functools.partial(run_and_report, program, scope, report, failed=failed)


class NextRun:
    """Another run of the program that was compared, once its compiled functions have been met.

    To be made before the program runs, which may change the current folder and the environment.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        program = ["-m", *given.module] if given.module else list(given.program)
        values = {name: getattr(given, name) for name in ("rtol", "atol", "seconds", "top")}
        options = [f"--{name}={value}" for name, value in values.items() if value is not None]
        self._command = [*options, *(["--close"] if given.close else []), *program]
        self._script = program[1] if given.module else program[0]
        self._folder, self._environment = os.getcwd(), dict(os.environ)

    def report(self, made: Report, files: Mapping[str, str]) -> None:
        """Runs it, and sets the status where something differs. Its rows are added to the JSON file."""
        if int(self._environment.get("WORLD_SIZE") or 1) > 1:
            print("not compared: compiled code, as the program runs in several processes", flush=True)
            return
        print(f"\n[diff] {self._script} runs once more, to compare the code of its compiled functions:", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rows.json")
            status = self._run(path)
            if status not in (0, statuses.FOUND, statuses.NOT_LOOKED_AT):
                program_end.tell(f"amanda diff: the compiled code of {self._script} was not compared (status {status})")
            elif "json" in files:
                with made.part(f"write {files['json']!r}"):
                    _extend(files["json"], path)
        if status == statuses.FOUND and made.status in (None, statuses.NOT_LOOKED_AT):
            made.status = statuses.FOUND

    def _run(self, path: str) -> int:
        command = [sys.executable, "-m", "amanda", "diff", "--compiled-code", f"--json={path}", *self._command]
        process = subprocess.Popen(command, cwd=self._folder, env=self._environment)

        def end(status: int) -> int:
            process.terminate()
            return status

        with before_sudden_end(end):
            return process.wait()


def _extend(path: str, other: str) -> None:
    """Adds the rows of another JSON file, as rows of the kind "compiled code"."""
    with open(path, encoding="utf-8") as file, open(other, encoding="utf-8") as more:
        rows: list[Any] = json.load(file) + [{"kind": "compiled code", **row} for row in json.load(more)]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1)
