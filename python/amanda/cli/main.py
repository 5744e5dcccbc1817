"""The command `amanda`, or `python -m amanda`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from amanda import drivers
from amanda.cli import doctor


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command line; None: this process's.

    Raises:
        SystemExit: the program that it runs has raised it, or has failed.
    """
    parser = argparse.ArgumentParser(prog="amanda", description="Instrumentation for neural networks.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "doctor",
        help="what tools would see of a program, and what this installation is",
        description="Prints what this installation is. With a program, runs it under a tool that asks for everything, and "
        "prints what that tool was shown, and what not, for which reason.",
    )
    command.add_argument("--top", type=int, default=20, help="rows of each table (default: %(default)s)")
    options = {name: option for driver in drivers.registered() for name, option in driver.options.items()}
    for name, (choices, meaning) in options.items():
        command.add_argument(f"--{name}", choices=choices, default=choices[0], help=f"{meaning} (default: %(default)s)")
    command.add_argument("-m", nargs=argparse.REMAINDER, dest="module", metavar="MODULE", help="a module, as python -m")
    command.add_argument(
        "program", nargs=argparse.REMAINDER, help="a script and its arguments, after all options of ours"
    )
    given = parser.parse_args(arguments)
    chosen = {name: getattr(given, name) for name in options}
    if given.module == []:
        command.error("argument -m: expected a module")
    if given.top < 0:
        command.error(f"argument --top: expected a number of rows, got {given.top}")
    print(doctor.environment(), flush=True)
    if given.module:
        doctor.examine(doctor.Program.of_module(given.module), chosen, given.top)
    elif given.program:
        try:
            program = doctor.Program.of_script(given.program)
        except OSError as error:
            command.error(f"can't open {given.program[0]!r}: {error.strerror}")
        doctor.examine(program, chosen, given.top)
