"""`amanda doctor` prints what is installed, and which operators of a program tools see."""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import platform

from amanda import _build, _core
from amanda.cli import program_arguments, writes
from amanda.cli.command import Command, Job
from amanda.cli.command_output import Report, run_and_report
from amanda.cli.program import Program
from amanda.core import op_context, scope, tool
from amanda.driver import registry

TESTED_ON = "x86_64"


class Doctor(Command):
    """`amanda doctor`."""

    name = "doctor"
    description = (
        "Prints what this installation is. With a program, runs it under a tool that asks for everything, and "
        "prints what that tool was shown, and what not, for which reason."
    )
    example = "amanda doctor --top 10 train.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--top", type=int, default=20, help="rows of each table (default: %(default)s)")

    def begin(self, given: argparse.Namespace) -> Job:
        program = program_arguments.program_of(given)
        print(environment(whole=program is None), flush=True)
        return self.job(program, given) if program is not None else lambda: None

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints what a tool that asks for every operator saw."""
        covered = scope.apply(_Everything(), **program_arguments.options(given), coverage=True)

        def report(made: Report, status: object) -> None:
            with made.part("print what tools see"):
                remarks = [line for driver in registry.loaded() for line in driver.remarks()]
                print("\n".join(["", covered.coverage().table(given.top), *remarks]))

        beside = writes.recorded(given)
        return functools.partial(run_and_report, program, covered, report, strict=given.strict, beside=beside)


class _Everything(tool.Tool):
    """Asks for all operators, forward and backward, and does nothing with them."""

    def __init__(self) -> None:
        super().__init__("doctor")
        self.add_inst_for_op(self._look)
        self.add_inst_for_op(self._look, backward=True)

    def _look(self, context: op_context.OpContext) -> None:
        pass


def environment(whole: bool = False) -> str:
    """Describes this installation, as lines of text. `whole`: imports what only some programs import, which takes
    seconds."""
    folder = os.path.dirname(_core.__file__)
    read_only = "" if os.access(folder, os.W_OK) else ", which is read-only"
    found = [("amanda", f"{_core.__version__}, in {folder}{read_only}")]
    machine = "" if platform.machine() == TESTED_ON else f"; amanda is tested on {TESTED_ON} only"
    found += [
        ("python", f"{platform.python_version()} ({platform.python_implementation()}), {platform.platform()}{machine}")
    ]
    found += [("compiled by", _build.COMPILER), ("C library", " ".join(platform.libc_ver()) or "unknown")]
    for driver in registry.registered():
        found += driver.describe(whole)
    found += [("thread-local storage", _thread_local_storage())]
    width = max(len(name) for name, _ in found)
    return "\n".join(f"{name:{width}}  {value}" for name, value in found)


def _thread_local_storage() -> str:
    """Whether there is room for libraries whose thread-local variables must be placed when they are loaded, as text."""
    own = "amanda's is allocated when it is used"
    try:
        ctypes.CDLL(os.path.join(os.path.dirname(_core.__file__), "libamanda_initial_exec_probe.so"))
    except OSError as error:
        if "static TLS" not in str(error):
            raise
        return (
            f"{own}; the room reserved for other libraries' is used up: what is loaded now may fail with 'cannot allocate "
            "memory in static TLS block'; load it earlier, or set GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096"
        )
    return f"{own}; room for other libraries' is left"
