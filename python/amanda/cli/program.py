"""A Python program that a command runs in a scope, as Python would run it without one."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import io
import os
import runpy
import sys
import types
from collections.abc import Callable
from types import TracebackType
from typing import Any

from amanda.scope import Scope

INTERRUPTED = 130  # the exit status that shells give for Ctrl-C


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

    def run_in(self, scope: Scope) -> object:
        """Runs it, and returns its exit status: 1 where an exception has ended it, which is printed as Python does.

        Raises:
            SystemExit: this is a process that the program has forked: what the caller does at the end is not for it.
        """
        process = os.getpid()
        sys.argv[:] = self.argv
        if not sys.flags.safe_path:
            sys.path[0] = self.path
        status: object = None
        try:
            with scope:
                self.run()
        except SystemExit as stopped:
            status = stopped.code
        except BaseException as error:
            error.__traceback__ = _of_program(error.__traceback__)
            sys.excepthook(type(error), error, error.__traceback__)
            status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        sys.stderr.flush()
        if os.getpid() != process:
            raise SystemExit(status)
        return status


def _run_script(path: str, source: bytes) -> None:
    """As `python path` does. runpy would change sys.argv[0], and remove the module at the end."""
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """Without the frames outside the program: Amanda's and runpy's."""
    while traceback and traceback.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>", runpy.__file__):
        traceback = traceback.tb_next
    return traceback
