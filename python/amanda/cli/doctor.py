"""`amanda doctor` prints what is installed, and which operators of a program tools see."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import io
import os
import platform
import runpy
import sys
import types
from collections.abc import Callable
from types import TracebackType
from typing import Any

from amanda import _core, drivers, op_context, scope, tool


class _Everything(tool.Tool):
    """Asks for all operators, forward and backward, and does nothing with them."""

    def __init__(self) -> None:
        super().__init__("doctor")
        self.add_inst_for_op(self._look)
        self.add_inst_for_op(self._look, backward=True)

    def _look(self, context: op_context.OpContext) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class Program:
    """A Python program as a command line names it."""

    argv: list[str]
    path: str  # sys.path[0]
    run: Callable[[], Any]

    @classmethod
    def of_script(cls, argv: list[str]) -> Program:
        """Raises `OSError`: the script can't be read."""
        path = os.path.abspath(argv[0])
        with io.open_code(path) as file:
            source = file.read()
        return cls(argv, os.path.dirname(os.path.realpath(path)), lambda: _run_script(path, source))

    @classmethod
    def of_module(cls, argv: list[str]) -> Program:
        return cls(argv, os.getcwd(), lambda: runpy.run_module(argv[0], None, "__main__", alter_sys=True))


def _run_script(path: str, source: bytes) -> None:
    """Runs it as `python path` does. runpy would change sys.argv[0], and remove the module at the end."""
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def environment() -> str:
    """Describes this installation, as lines of text."""
    found = [("amanda", f"{_core.__version__}, in {os.path.dirname(_core.__file__)}")]
    found += [("python", f"{platform.python_version()} ({platform.python_implementation()}), {platform.platform()}")]
    for driver in drivers.registered():
        found += driver.describe()
    width = max(len(name) for name, _ in found)
    return "\n".join(f"{name:{width}}  {value}" for name, value in found)


def examine(program: Program, options: dict[str, Any], top: int) -> None:
    """Runs a program in a scope with these options, and prints what a tool that asks for every operator saw.

    Raises: SystemExit: the program's own; or 1 if another exception ended it, which is printed as Python does.
    """
    covered = scope.apply(_Everything(), **options, coverage=True)
    sys.argv[:] = program.argv
    if not sys.flags.safe_path:
        sys.path[0] = program.path
    status: object = None
    try:
        with covered:
            program.run()
    except SystemExit as stopped:
        status = stopped.code
    except BaseException as error:
        error.__traceback__ = _of_program(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    sys.stderr.flush()
    remarks = [line for driver in drivers.loaded() for line in driver.remarks()]
    print("\n".join(["", covered.coverage().table(top), *remarks]), flush=True)
    if status is not None:
        raise SystemExit(status)


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames outside the program: Amanda's and runpy's."""
    while traceback and traceback.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>", runpy.__file__):
        traceback = traceback.tb_next
    return traceback
