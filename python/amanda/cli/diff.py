"""`amanda diff` records a run of a program, and compares another run with a record, or two records."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from amanda.cli import compiled_code, program_arguments, program_end, statuses
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report, program_failed
from amanda.cli.exported_program import SUFFIX
from amanda.cli.live_table import live
from amanda.cli.program import Program
from amanda.cli.sudden_end import before_sudden_end
from amanda.reports.progress import live_bar
from amanda.tools.diff import CausalDiff, RecordDiff, Recorder
from amanda.tools.diff.differences import Differences
from amanda.tools.diff.record import is_record
from amanda.tools.diff.rows import COLUMNS

COMPARED_FAILED = (
    5  # exit status: the program that was compared, where `statuses.PROGRAM_FAILED` is of the one that was recorded
)
FILES = ("json", "html")


class Diff(Command):
    """`amanda diff`."""

    name = "diff"
    description = (
        "Records what every operator of a program returns, and compares another run with it: a.py and then "
        "b.py, or --record a folder, and later --against it; or two such folders. Or compares a file with the program "
        "whose model was exported: a .pt2 file in place of b.py, or an ONNX file, --against-onnx. Each result that "
        "differs is replaced by the "
        "reference's, so that only causes are listed. The exit status is 0 if nothing differs, 1 if something does, 2 "
        "for mistakes in the command line or the record, 3 if the program that is recorded fails, 4 if nothing differs in "
        "what was compared and a part was not compared, or with --record and --strict if a part was not recorded, and 5 if "
        "the program that is compared fails."
    )
    example = "amanda diff before.py after.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        option = parser.add_argument
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--record", metavar="FOLDER", help="records the program there")
        which.add_argument("--against", metavar="FOLDER", help="compares the program with the record there")
        which.add_argument(
            "--compiled-code",
            action="store_true",
            help="compares the functions that one program compiles with what they compute eagerly; without it, this "
            "follows each comparison with a program that has such functions",
        )
        which.add_argument("--against-onnx", metavar="FILE", help="compares an ONNX file with the program's model")
        option(
            "--eager-only",
            action="store_true",
            help="does not run the program once more to compare its compiled functions",
        )
        option(
            "--seconds",
            type=float,
            default=120.0,
            help="the time to search one compiled graph for the operators that differ (default: %(default)g)",
        )
        for name in ("rtol", "atol"):
            option(f"--{name}", type=float, help="what is tolerated (default: 0 within a dtype)")
        option("--close", action="store_true", help="tolerates what torch.testing.assert_close does for each dtype")
        option("--float64", action="store_true", help="shows how far both results are from those of float64 inputs")
        option("--export", metavar="FILE", help="the export of which the file of --against-onnx was made")
        option("--calls", type=int, help="how many calls of the model are compared with it (default: 3)")
        option("--top", type=int, help="how many rows (default: all)")
        option("--json", metavar="FILE", help="writes all rows there, too")
        option("--html", metavar="FILE", help="writes a page there, too")

    def begin(self, given: argparse.Namespace) -> Job:
        """Records and compares: a record that cannot be read is a mistake, also after its program has run."""
        other = None
        if given.compiled_code:
            return compiled_code.job(program_arguments.required(given), given, _checked(given))
        if given.against_onnx:
            from amanda.cli import export_diff  # here: only this option needs it

            return export_diff.job(program_arguments.required(given), given, COMPARED_FAILED)
        for name in ("export", "calls"):
            if getattr(given, name):
                raise ValueError(f"argument --{name}: it goes with --against-onnx")
        if not given.record and not given.against:
            if len(given.program) < 2:
                raise ValueError("expected two scripts; or --record or --against, and a script")
            if all(map(is_record, given.program)) and len(given.program) == 2:
                return functools.partial(program_end.leave, compare_records(given))
            if (pair := _with_file(given.program)) is not None:
                return _compare_file(*pair, given)
            other = given.program.pop(0)
        run(program_arguments.required(given), other, given)
        return lambda: None


def _with_file(programs: list[str]) -> tuple[str, str] | None:
    """A script and a file of torch.export, in either order; None if the first two are something else."""
    files = [name for name in programs[:2] if name.endswith(SUFFIX)]
    scripts = [name for name in programs[:2] if not name.endswith(SUFFIX)]
    return (scripts[0], files[0]) if files and scripts else None


def _compare_file(script: str, path: str, given: argparse.Namespace) -> Job:
    from amanda.cli import exported_diff  # here: it needs torch

    files = _checked(given)
    given.program = [script, *given.program[2:]]

    def report(diff: CausalDiff, title: str, made: Report, agreement: str) -> None:
        _report(diff, title, files, given.top, made, agreement)

    return exported_diff.job(program_arguments.required(given), path, given, report, COMPARED_FAILED)


def run(program: Program, other: str | None, given: argparse.Namespace) -> None:
    """Records `program`, or compares it with a record: of the script `other`, if there is one.

    Raises:
        SystemExit: one of the statuses above.
        KeyboardInterrupt: Ctrl-C has ended a program.
        ValueError: there is no record, or a tolerance is negative, or a file cannot be written; no program has run.
        OSError: a record cannot be written or read.
    """
    if given.record:
        _record(program, of_rank(given.record), given)
        return
    files = _checked(given)  # before anything runs
    if other is None:
        folder = given.against if is_record(given.against) else of_rank(given.against)
        _compare(program, folder, files, given)
        return
    folder, process = tempfile.mkdtemp(), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # not in those that the program forks
            shutil.rmtree(folder, ignore_errors=True)

    try:
        _record_other(other, program.argv[1:], folder, program_arguments.options(given), remove)
        _compare(program, folder, files, given, remove)
    finally:
        remove()


def compare_records(given: argparse.Namespace) -> int | None:
    """Returns the exit status. Raises as `run`."""
    files = _checked(given)
    reference, record = given.program
    diff = RecordDiff(reference, record, rtol=given.rtol, atol=given.atol, close=given.close)
    made = Report()
    _report(diff, f"{reference} {record}", files, given.top, made)
    return made.status


def of_rank(folder: str) -> str:
    """Its own folder for each of the processes that a launcher such as torchrun has started."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return os.fspath(Path(folder) / f"rank{os.environ['RANK']}")
    return folder


def _checked(given: argparse.Namespace) -> dict[str, str]:
    """The files that are asked for. Raises `ValueError`: one could not be made later."""
    return program_arguments.files_of(given, FILES)


def _record_other(
    script: str, arguments: list[str], folder: str, options: dict[str, Any], remove: Callable[[], object]
) -> None:
    """In a process of its own. `remove` is called where this one ends suddenly.

    Raises:
        SystemExit: `statuses.PROGRAM_FAILED`.
        KeyboardInterrupt: Ctrl-C, once the script has ended by it, too.
    """
    scoped = [f"--{name}={value}" for name, value in options.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "amanda", "diff", "--record", folder, *scoped, script, *arguments]
    )

    def end(status: int) -> int:
        process.terminate()
        with contextlib.suppress(ChildProcessError):  # it had ended
            os.waitpid(process.pid, 0)  # process.wait has been interrupted, and holds a lock
        remove()
        return status

    with before_sudden_end(end):
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.wait()
            program_end.leave(program_end.INTERRUPTED)
    if status:
        is_reported = status == statuses.PROGRAM_FAILED  # by the process that recorded
        program_end.leave(statuses.PROGRAM_FAILED if is_reported else program_failed("diff", script, status))


def _record(program: Program, folder: str, given: argparse.Namespace) -> None:
    recorder, script = Recorder(folder), program.argv[0]

    def report(made: Report, status: object) -> None:
        with made.part("complete the record"):
            recorder.close(interrupted=not program_end.is_success(status))

    shown = live_bar(
        None, lambda: recorder.executions, lambda: f"recording {script}, {recorder.bytes / 1e6:,.0f} MB of results"
    )
    failed = functools.partial(program_failed, "diff", script)
    run_under(recorder, program, given, report, coverage=True, shown=live(shown), failed=failed)()


def _compare(
    program: Program,
    folder: str,
    files: Mapping[str, str],
    given: argparse.Namespace,
    remove: Callable[[], object] = lambda: None,
) -> None:
    tool = CausalDiff(folder, rtol=given.rtol, atol=given.atol, close=given.close, float64=given.float64)
    script, next_run = program.argv[0], None if given.eager_only else compiled_code.NextRun(given)

    def report(made: Report, status: object) -> None:
        tool.set_ended_early(not program_end.is_success(status))
        try:
            _report(tool, " ".join(program.argv), files, given.top, made)
        finally:
            remove()
        if next_run is not None and tool.has_compiled and program_end.is_success(status):
            next_run.report(made, files)

    shown = live_bar(tool.recorded, lambda: tool.compared, lambda: f"comparing {script}")
    failed = functools.partial(program_failed, "diff", script, own=COMPARED_FAILED)
    run_under(tool, program, given, report, coverage=True, shown=live(shown), failed=failed)()


def _report(
    diff: Differences, title: str, files: Mapping[str, str], top: int | None, made: Report, agreement: str = ""
) -> None:
    """`agreement`: a sentence in place of the rows."""
    rows, summary = ([], agreement) if agreement else (diff.rows(), diff.summary)
    with made.part("print the table"):
        found = f"\n{diff.answer()}\n\n{diff.table('change', top=top)}" if rows else ""
        print(f"{found}\n{summary}", flush=True)
    if "json" in files:
        with made.part(f"write {files['json']!r}"), open(files["json"], "w", encoding="utf-8") as file:
            json.dump([dataclasses.asdict(row) for row in rows], file, indent=1)
    if "html" in files:
        with made.part(f"write {files['html']!r}"):
            from amanda.reports.html_page import HtmlPage  # here: it imports jinja2

            page = HtmlPage("Two runs compared", f"{title}\n{summary}\n{diff.parting or ''}".rstrip())
            page.add_table("Causes", COLUMNS, rows)
            page.write(files["html"])
    if diff.damage:
        program_end.tell(f"amanda diff: error: {diff.damage}")
        made.status = statuses.USAGE
    elif made.status is None and not agreement:
        made.status = statuses.FOUND if diff.differs else statuses.NOT_LOOKED_AT if diff.not_compared else None
