"""The results that a command prints and writes when its program has ended, for whatever reason."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import IO

from amanda.cli import program_end, statuses
from amanda.cli.program import Program
from amanda.cli.sudden_end import before_sudden_end
from amanda.core.scope import Scope
from amanda.reports.source_files import paths_from_here


class Report:
    """Parts of a report. A part that fails is reported on standard error, and does not stop the others."""

    def __init__(self) -> None:
        self.status: int | None = None  # of the process, if the program has ended well

    @contextlib.contextmanager
    def part(self, what: str) -> Iterator[None]:
        """`what` is said of a block that raises: "amanda: can't print the table: ..."."""
        try:
            yield
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of a pipe has seen enough; Python flushes again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:
            if not isinstance(error, (OSError, ImportError, ValueError)):
                traceback.print_exc()
            program_end.tell(f"amanda: can't {what}: {error}")
            self.status = statuses.USAGE


def run_and_report(
    program: Program,
    scope: Scope,
    report: Callable[[Report, object], object],
    *,
    shown: contextlib.AbstractContextManager[object] | None = None,
    prepare: Callable[[], object] = lambda: None,
    failed: Callable[[object], object] = lambda status: status,
    strict: bool = False,
    beside: Scope | None = None,
) -> None:
    """Runs a program in a scope, and then `report`, which prints and writes what was found.

    `report` is called with the program's exit status. Its output goes to the standard output of this call, also if the
    program has replaced it. Processes that the program forks report nothing.

    Arguments:
        shown: entered while the program runs.
        prepare: called when the scope is entered, just before the program starts.
        failed: is called with the exit status of a program that has not ended well, and returns that of this process.
        strict: the status of this process is `statuses.NOT_LOOKED_AT` where it would be 0, and a tool of the scope was not
            shown or could not read something that ran.
        beside: see `Program.run_in`.

    Raises:
        NotStarted: the scope could not be entered, or `prepare` has failed.
        SystemExit: the program's own, or of its exception, which is printed as Python does; or that of the report.
        KeyboardInterrupt: the program's own, printed already.
    """
    stdout = sys.stdout

    def end(own: int | None, status: object) -> object:
        if not program_end.is_success(status):
            return failed(status)
        if strict and own is None and _told_unseen(scope):
            return statuses.NOT_LOOKED_AT
        return status if own is None else own

    def end_suddenly(status: int) -> int:
        own = end(_report_suddenly(report, status), status)
        return own if isinstance(own, int) else status

    with paths_from_here():
        with before_sudden_end(end_suddenly), shown or contextlib.nullcontext():
            status = program.run_in(scope, prepare, beside)
        found = end(_report(report, status, stdout), status)
    program_end.leave(found)


def program_failed(command: str, script: str, status: object, own: int = statuses.PROGRAM_FAILED) -> object:
    """Prints the status of a program that has not ended well, and returns `own`. For commands with own statuses."""
    if status is program_end.INTERRUPTED:
        return status
    if not isinstance(status, int):  # as Python does with a text
        program_end.tell(str(status))
        status = 1
    program_end.tell(f"amanda {command}: {script} ended with status {status}")
    return own


def _told_unseen(scope: Scope) -> bool:
    """Prints on standard error what the tools did not look at, and returns True if there was any."""
    found = [evidence for evidence in scope.evidence() if not evidence.is_complete]
    for evidence in found:
        program_end.tell(f"amanda: --strict: {evidence.tool} did not look at {evidence.not_looked_at}")
    return bool(found)


def _report(report: Callable[[Report, object], object], status: object, stdout: IO[str] | None) -> int | None:
    made = Report()
    usable = next((stream for stream in (stdout, sys.stdout) if _is_usable(stream)), None)
    unprinted = io.StringIO()
    try:
        with contextlib.redirect_stdout(usable or unprinted), _prints_anything():
            report(made, status)
    except KeyboardInterrupt:
        program_end.tell("amanda: interrupted before all results were handed out")
        return program_end.INTERRUPTED
    if unprinted.getvalue():
        program_end.tell("amanda: can't print what was found: standard output is closed or broken")
    return made.status


def _report_suddenly(report: Callable[[Report, object], object], status: int) -> int | None:
    """The report of a program that ends suddenly. The program's own output is not flushed."""
    try:
        stdout: IO[str] | None = os.fdopen(1, "w", encoding=getattr(sys.stdout, "encoding", None), closefd=False)
    except OSError:
        stdout = None
    return _report(report, status, stdout)


@contextlib.contextmanager
def _prints_anything() -> Iterator[None]:
    """Inside the block standard output replaces what it cannot encode, such as lines of tables in ASCII."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper):
        yield
        return
    errors = stdout.errors
    stdout.reconfigure(errors="replace")
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):  # it is flushed; the report has said so
            stdout.reconfigure(errors=errors)


def _is_usable(stream: IO[str] | None) -> bool:
    if stream is None:
        return False
    try:
        stream.flush()
        os.fstat(stream.fileno())
    except (io.UnsupportedOperation, AttributeError):  # no file: in memory
        return True
    except (OSError, ValueError):
        return False
    return True
