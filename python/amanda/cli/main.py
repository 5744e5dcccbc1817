"""The command `amanda`, or `python -m amanda`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import IO, Any

from amanda import drivers
from amanda.cli import diff, doctor, ls, memory, nan, profile, run, trace, watch
from amanda.cli.program import Program
from amanda.program_points import PointsTool
from amanda.reports import point_table
from amanda.tools.diff.record import is_record


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command line; None: this process's.

    Raises:
        SystemExit: the program that it runs has raised it, or has failed.
    """
    parser = argparse.ArgumentParser(prog="amanda", description="Instrumentation for neural networks.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_doctor(commands)
    _add_ls(commands)
    _add_nan(commands)
    _add_diff(commands)
    _add_trace(commands)
    _add_profile(commands)
    _add_memory(commands)
    _add_watch(commands)
    given = parser.parse_args(arguments)
    given.run(given)


def _add_run(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="a program under any tools, and what they found",
        description="Runs a program under tools, and prints what they found, or writes it to a folder, also after an "
        "exception or Ctrl-C. Its exit status is the program's.",
        epilog="example: amanda run -t profile -t 'magnitude_pruning(sparsity=0.9)' --by module --out results train.py",
    )
    run.add_options(command)
    _add_program(command)

    def run_program(given: argparse.Namespace) -> None:
        program = _required_program(command, given)
        try:
            run.run(program, run.settings_of(given), given, _options(given))
        except (ValueError, TypeError, ImportError, OSError) as error:  # the program's own are printed as Python does
            command.error(str(error))

    command.set_defaults(run=run_program)


def _add_doctor(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="what tools would see of a program, and what this installation is",
        description="Prints what this installation is. With a program, runs it under a tool that asks for everything, and "
        "prints what that tool was shown, and what not, for which reason.",
    )
    command.add_argument("--top", type=int, default=20, help="rows of each table (default: %(default)s)")
    _add_program(command)

    def run(given: argparse.Namespace) -> None:
        program = _program(command, given)
        print(doctor.environment(), flush=True)
        if program is not None:
            doctor.examine(program, _options(given), given.top)

    command.set_defaults(run=run)


def _add_ls(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "ls",
        help="the operators that a program runs, and where",
        description="Runs a program, and lists the operators that it ran, forward and backward: how often, in which "
        "module, at which line, the dtypes and shapes of the first run, and the id. Its exit status is the program's.",
    )
    command.add_argument(
        "--ops", action="append", metavar="NAMES", help="only these, as ops= in a tool: conv2d,*norm* (default: all)"
    )
    command.add_argument(
        "--sort", choices=point_table.SORTS, default="order", help="of the rows (default: %(default)s, of first runs)"
    )
    command.add_argument("--top", type=int, help="how many rows (default: all)")
    command.add_argument("--json", metavar="FILE", help="writes all rows there instead of printing a table")
    _add_program(command)

    def run(given: argparse.Namespace) -> None:
        program = _required_program(command, given)
        names = [name for names in given.ops for name in names.split(",")] if given.ops else None
        try:
            tool = PointsTool(names)
        except ValueError as error:
            command.error(f"argument --ops: {error}")
        file = _output_file(command, given.json)
        ls.list_points(program, tool, _options(given), given.sort, given.top, file)

    command.set_defaults(run=run)


def _add_nan(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "nan",
        help="which operator of a program produced the first NaN",
        description="Runs a program until an operator produces a NaN, forward or backward, and prints which, where, and "
        "its operands. Its exit status is the program's, or 1 if there was a NaN.",
    )
    nan.add_options(command)
    _add_program(command)

    def run(given: argparse.Namespace) -> None:
        program = _required_program(command, given)
        nan.find(program, given, _options(given))

    command.set_defaults(run=run, top=None)


def _add_diff(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "diff",
        help="which operators cause the difference between two runs",
        description="Records what every operator of a program returns, and compares another run with it: a.py and then "
        "b.py, or --record a folder, and later --against it; or two such folders. Each result that differs is replaced by "
        "the reference's, so that only causes are listed. The exit status is 0 if nothing differs, 1 if something does, 2 "
        "for mistakes in the command line or the record, and 3 if a program fails.",
        epilog="example: amanda diff before.py after.py",
    )
    diff.add_options(command)
    _add_program(command)

    def run(given: argparse.Namespace) -> None:
        other = None
        if not given.record and not given.against:
            if len(given.program) < 2:
                command.error("expected two scripts; or --record or --against, and a script")
            if all(map(is_record, given.program)) and len(given.program) == 2:
                return compare(lambda: diff.compare_records(given))
            other = given.program.pop(0)
        program = _required_program(command, given)
        compare(lambda: diff.run(program, other, given, _options(given)))

    def compare(run: Callable[[], None]) -> None:
        try:
            run()
        except (ValueError, OSError) as error:
            command.error(str(error))

    command.set_defaults(run=run)


def _add_trace(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "trace",
        help="expressions over the operands of a program's operators",
        description="Runs a program, evaluates expressions at its operators, and prints their values, aggregated. Its exit "
        "status is the program's.",
        epilog="example: amanda trace -e 'linear: input.abs().max()' -e '*: output.isnan().sum()' --by module train.py",
    )
    trace.add_options(command)
    command.add_argument("--top", type=int, help="how many rows (default: all)")
    command.add_argument("--json", metavar="FILE", help="writes all rows there instead of printing a table")
    _add_program(command)

    def run(given: argparse.Namespace) -> None:
        program = _required_program(command, given)
        try:
            tool = trace.tool_of(given)
        except ValueError as error:
            command.error(str(error))
        trace.run(program, tool, _options(given), given.top, _output_file(command, given.json))

    command.set_defaults(run=run)


def _add_profile(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "profile",
        help="which lines of a program its time goes to, forward and backward",
        description="Runs a program, and prints the source code of its files with what each line costs: calls of "
        "operators, time, share, bytes. Its exit status is the program's.",
        epilog="example: amanda profile --backward --html page.html train.py",
    )
    profile.add_options(command)
    _add_program(command)

    def run(given: argparse.Namespace) -> None:
        program = _required_program(command, given)
        try:
            tool = profile.tool_of(given)
        except ValueError as error:
            command.error(str(error))
        profile.run(program, tool, given, _options(given))

    command.set_defaults(run=run)


def _add_memory(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "memory",
        help="what was in memory at the peak, which line made it, and what kept it",
        description="Runs a program, and prints what was in memory when most of it was in use: by kind, and by the line "
        "that made it. If an operator gets no memory, also what was there then. Its exit status is the program's.",
        epilog="example: amanda memory --html memory.html train.py",
    )
    memory.add_options(command)
    _add_program(command)

    def run(given: argparse.Namespace) -> None:
        program = _required_program(command, given)
        try:
            memory.run(program, given, _options(given))
        except OSError as error:
            command.error(str(error))

    command.set_defaults(run=run)


def _add_watch(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "watch",
        help="how operators, gradients and parameters change over the steps of a training script",
        description="Runs a program, and takes statistics of its operators, gradients and parameters in some of the steps "
        "of its optimizers. Prints a table, and alarms: divergence, vanishing and exploding gradients, dead units. Its "
        "exit status is the program's.",
        epilog="example: amanda watch --every 10 --tensorboard runs/1 --parquet out/1 train.py",
    )
    watch.add_options(command)
    command.add_argument("--top", type=int, default=20, help="rows of the table (default: %(default)s)")
    _add_program(command)

    def run(given: argparse.Namespace) -> None:
        program = _required_program(command, given)
        try:
            history, schedule = watch.parts_of(given)
        except (ValueError, OSError, ImportError) as error:
            command.error(str(error))
        watch.run(program, history, schedule, _options(given), given.top)

    command.set_defaults(run=run)


def _output_file(command: argparse.ArgumentParser, path: str | None) -> IO[str] | None:
    try:
        return open(path, "w", encoding="utf-8") if path else None
    except OSError as error:
        command.error(f"argument --json: can't write {path!r}: {error.strerror}")


def _add_program(command: argparse.ArgumentParser) -> None:
    """The options of scopes, and a program with its arguments, which come last."""
    for name, (choices, meaning) in _scope_options().items():
        command.add_argument(f"--{name}", choices=choices, default=choices[0], help=f"{meaning} (default: %(default)s)")
    command.add_argument("-m", nargs=argparse.REMAINDER, dest="module", metavar="MODULE", help="a module, as python -m")
    command.add_argument(
        "program", nargs=argparse.REMAINDER, help="a script and its arguments, after all options of ours"
    )


def _program(command: argparse.ArgumentParser, given: argparse.Namespace) -> Program | None:
    if given.module == []:
        command.error("argument -m: expected a module")
    if given.top is not None and given.top < 0:
        command.error(f"argument --top: expected a number of rows, got {given.top}")
    if given.module:
        return Program.of_module(given.module)
    if not given.program:
        return None
    try:
        return Program.of_script(given.program)
    except OSError as error:
        command.error(f"can't open {given.program[0]!r}: {error.strerror}")


def _required_program(command: argparse.ArgumentParser, given: argparse.Namespace) -> Program:
    program = _program(command, given)
    if program is None:
        command.error("expected a script, or -m and a module")
    return program


def _scope_options() -> dict[str, drivers.Option]:
    return {name: option for driver in drivers.registered() for name, option in driver.options.items()}


def _options(given: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(given, name) for name in _scope_options()}
