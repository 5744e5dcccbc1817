"""The command `amanda`, or `python -m amanda`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from amanda.cli import diff, doctor, flops, ls, memory, nan, profile, report, run, trace, watch

COMMANDS = (run, report, doctor, ls, profile, flops, memory, nan, diff, trace, watch)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command line; None: this process's.

    Raises:
        SystemExit: the program that it runs has raised it, or has failed.
    """
    given = parser().parse_args(arguments)
    given.run(given)


def parser() -> argparse.ArgumentParser:
    """Knows all commands; `run` of what it returns runs the one that is given."""
    made = argparse.ArgumentParser(prog="amanda", description="Instrumentation for neural networks.")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return made
