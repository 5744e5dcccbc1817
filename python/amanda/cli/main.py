"""The command `amanda`, or `python -m amanda`."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Sequence

from amanda import _core
from amanda.cli import guide
from amanda.cli.parsers import CommandParser, Listed, Parser
from amanda.cli.program import NotStarted

COMMANDS: tuple[Listed, ...] = (
    Listed("run", "a program under any tools, and what they found", "run:Run"),
    Listed(
        "report", "a page about a run whose results are in a folder, or about two next to each other", "report:MakePage"
    ),
    Listed("doctor", "what tools would see of a program, and what this installation is", "doctor:Doctor"),
    Listed("ls", "the operators that a program runs, and where", "ls:Ls"),
    Listed("profile", "which lines of a program its time goes to, forward and backward", "profile:ProfileLines"),
    Listed("flops", "floating point operations by module and by operator, forward and backward", "flops:CountFlops"),
    Listed("memory", "what was in memory at the peak, which line made it, and what kept it", "memory:Memory"),
    Listed("nan", "which operator of a program produced the first NaN", "nan:FindNan"),
    Listed("inplace", "which operator wrote to a tensor that the backward pass needs", "inplace:FindWrites"),
    Listed(
        "gradients", "which parameters get no gradient, and where the path to the loss is cut", "gradients:FindCuts"
    ),
    Listed("check", "mistakes in a training script that runs without an error", "check:CheckProgram"),
    Listed("diff", "which operators cause the difference between two runs", "diff:Diff"),
    Listed("trace", "expressions over the operands of a program's operators", "trace:TraceExpressions"),
    Listed(
        "watch", "how operators, gradients and parameters change over the steps of a training script", "watch:Watch"
    ),
    Listed("help", "from a problem, in your words, to a command", "help:Help"),
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
    commands = made.add_subparsers(metavar="COMMAND", parser_class=CommandParser)
    for command in COMMANDS:
        commands.add_parser(command.name, help=command.help, listed=command)
    return made
