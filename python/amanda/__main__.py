"""The command `amanda`, or `python -m amanda`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from amanda import _doctor


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command line; None: this process's. Ends with `SystemExit` where the program that it runs does, or fails."""
    parser = argparse.ArgumentParser(prog="amanda", description="Instrumentation for neural networks.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="what tools would see of a program, and what this installation is",
        description="Prints what this installation is. With a program, runs it under a tool that asks for everything, and "
        "prints what that tool was shown, and what not, for which reason.",
    )
    doctor.add_argument("--top", type=int, default=20, help="rows of each table (default: %(default)s)")
    doctor.add_argument(
        "--compiled",
        choices=["eager", "opaque"],
        default="eager",
        help="what functions compiled with torch.compile do, as in amanda.apply (default: %(default)s)",
    )
    doctor.add_argument("-m", nargs=argparse.REMAINDER, dest="module", metavar="MODULE", help="a module, as python -m")
    doctor.add_argument(
        "program", nargs=argparse.REMAINDER, help="a script and its arguments, after all options of ours"
    )
    given = parser.parse_args(arguments)
    if given.module == []:
        doctor.error("argument -m: expected a module")
    if given.top < 0:
        doctor.error(f"argument --top: expected a number of rows, got {given.top}")
    print(_doctor.environment(), flush=True)
    if given.module:
        _doctor.examine(_doctor.Program.of_module(given.module), given.compiled, given.top)
    elif given.program:
        try:
            program = _doctor.Program.of_script(given.program)
        except OSError as error:
            doctor.error(f"can't open {given.program[0]!r}: {error.strerror}")
        _doctor.examine(program, given.compiled, given.top)


if __name__ == "__main__":
    main()
