"""The command `amanda`, or `python -m amanda`."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Sequence

from amanda import _core
from amanda.cli import (
    check,
    diff,
    doctor,
    flops,
    gradients,
    guide,
    inplace,
    ls,
    memory,
    nan,
    profile,
    report,
    run,
    trace,
    watch,
)
from amanda.cli.command import Command, Parser
from amanda.cli.program import NotStarted

COMMANDS: tuple[Command, ...] = (
    run.Run(),
    report.MakePage(),
    doctor.Doctor(),
    ls.Ls(),
    profile.ProfileLines(),
    flops.CountFlops(),
    memory.Memory(),
    nan.FindNan(),
    inplace.FindWrites(),
    gradients.FindCuts(),
    check.CheckProgram(),
    diff.Diff(),
    trace.TraceExpressions(),
    watch.Watch(),
    guide.Help(),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command line; by default, this process's.

    Raises:
        SystemExit: the program that it runs has raised it, or has failed; or the command line has a mistake.
    """
    known = parser()
    given = known.parse_args(arguments)
    if given.run is None:
        print(guide.start_page())
        return
    try:
        given.run(given)
    except NotStarted as stopped:
        why = stopped.__cause__
        text = str(why)
        if not isinstance(why, (_core.Error, OSError, ImportError, ValueError)):  # a mistake in a tool
            traceback.print_exception(why)
            text = f"{type(why).__name__}: {why}"
        known.error(f"the program was not started: {text}")


def parser() -> argparse.ArgumentParser:
    """Knows all commands; `run` of what it returns runs the one that is given."""
    made = Parser(prog="amanda", description="Instrumentation for neural networks.")
    made.set_defaults(run=None)
    commands = made.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return made
