"""`amanda trace` runs a program, and evaluates expressions at its operators."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import typing
from collections.abc import Iterator
from typing import IO, Any

from amanda import scope
from amanda.cli.program import Program
from amanda.tools.trace import GroupBy, Trace
from amanda.tools.trace.rows import DEFAULT

GROUPS = typing.get_args(GroupBy)
REFRESHES = 2  # a second, of the live table
LIVE_ROWS = 15


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-e",
        dest="expressions",
        action="append",
        required=True,
        metavar="EXPRESSION",
        help="operators, a colon, and Python over their operands; may be given several times",
    )
    command.add_argument("--by", choices=GROUPS, default="module", help="what a row is (default: %(default)s)")
    command.add_argument(
        "--every", type=int, default=1, metavar="N", help="only each N-th execution of an operator (default: all)"
    )
    command.add_argument(
        "--aggregate", default=",".join(DEFAULT), metavar="NAMES", help="of the values (default: %(default)s)"
    )


def tool_of(given: argparse.Namespace) -> Trace:
    """The tool for these options. Raises `ValueError`: one of them is wrong."""
    names: Any = [name.strip() for name in given.aggregate.split(",")]
    return Trace(*given.expressions, by=given.by, every=given.every, aggregate=names)


def run(program: Program, tool: Trace, options: dict[str, Any], top: int | None, file: IO[str] | None) -> None:
    """Runs a program in a scope with these options, and prints the table of `tool`, or writes its rows to `file`.

    Raises:
        SystemExit: the program's own; or 1 where another exception has ended it, which is printed as Python does.
    """
    with _live(tool):
        status = program.run_in(scope.apply(tool, **options))
    if file is None:
        print(f"\n{tool.table(top=top)}", flush=True)
    else:
        with file:
            json.dump([dataclasses.asdict(row) for row in tool.rows()], file, indent=1)
    if status is not None:
        raise SystemExit(status)


@contextlib.contextmanager
def _live(tool: Trace) -> Iterator[None]:
    """Shows the table while the program runs, where standard error is a terminal and standard output is not.

    Where both are one, the program's own lines and the table would overwrite each other.
    """
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield
        return
    import rich.console
    import rich.live

    console = rich.console.Console(stderr=True)
    with rich.live.Live(
        get_renderable=lambda: tool.table(top=LIVE_ROWS),
        console=console,
        refresh_per_second=REFRESHES,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield
