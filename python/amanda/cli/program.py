"""A Python program that a command runs in a scope, as Python would run it without one.

An interpreter of its own that a `sitecustomize` prepares, as coverage has for child processes, would need less code, but
at its end no hook learns the status of `raise SystemExit(3)`, and none can set another one: only `os._exit` could, which
skips the rest of the end. Reports and the statuses of `amanda nan`, `amanda diff` and --strict need both.
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import types
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

from amanda.cli import late_torch, program_end
from amanda.core.scope import Scope
from amanda.core.unmatched import UnmatchedFilterWarning
from amanda.driver import registry


class NotStarted(Exception):
    """Nothing of the program has run: its scope could not be entered. The cause is why."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A Python program as a command line names it."""

    argv: list[str]
    path: str  # sys.path[0]
    run: Callable[[], Any]

    @classmethod
    def of_script(cls, argv: list[str]) -> Program:
        """A script; or a folder or a zip file with a "__main__.py". Raises `OSError`: it can't be read."""
        path = os.path.abspath(argv[0])
        if pkgutil.get_importer(path) is not None:
            return cls(argv, path, lambda: _run_module("__main__", alter_argv=False))
        with io.open_code(path) as file:
            code: bytes | types.CodeType | None = pkgutil.read_code(file)
            if code is None:
                file.seek(0)
                code = file.read()
        return cls(argv, os.path.dirname(os.path.realpath(path)), lambda: _run_script(path, code))

    @classmethod
    def of_exported(cls, argv: list[str]) -> Program:
        """A `.pt2` file of torch.export, with its inputs. Raises as `ExportedProgram`."""
        from amanda.cli.exported_program import ExportedProgram  # here: it needs torch

        return cls(argv, os.path.dirname(os.path.abspath(argv[0])), ExportedProgram(argv).run)

    @classmethod
    def of_onnx(cls, argv: list[str]) -> Program:
        """An ONNX file, with its inputs. Raises as `OnnxModel`."""
        from amanda.cli.onnx_model import OnnxModel

        return cls(argv, os.path.dirname(os.path.abspath(argv[0])), OnnxModel(argv).run)

    @classmethod
    def of_module(cls, argv: list[str]) -> Program:
        try:
            path = os.getcwd()
        except FileNotFoundError:  # somebody has removed it
            path = ""
        return cls(argv, path, lambda: _run_module(argv[0], alter_argv=True))

    def run_in(self, scope: Scope, prepare: Callable[[], object] = lambda: None, beside: Scope | None = None) -> object:
        """Runs it, and returns its exit status: 1 where an exception has ended it, which is printed as Python does.

        Arguments:
            prepare: called when the scope is entered, just before the program starts.
            beside: another scope, around `scope`, whose tools explain errors of the program.

        Raises:
            NotStarted: the scope could not be entered, or `prepare` has failed.
            SystemExit, KeyboardInterrupt: this is a process that the program has forked: what the caller does at the end
                is not for it.
        """
        process = os.getpid()
        status: object = None
        uncaught: BaseException | None = None
        absence = registry.absence()
        if absence is not None:
            program_end.tell(f"amanda: {absence}")
        try:
            with _Entered(scope, prepare, beside):
                sys.argv[:] = self.argv
                if not sys.flags.safe_path:
                    sys.path[0] = self.path
                with late_torch.not_imported():
                    self.run()
        except NotStarted:
            raise
        except SystemExit as stopped:
            status = stopped.code
        except BaseException as error:
            error.__traceback__ = _of_program(error.__traceback__)
            uncaught = error
        if uncaught is not None:  # no longer handled: it is not the context of what sys.excepthook raises
            status = program_end.printed(uncaught)
        if os.getpid() != process:
            program_end.leave(status)
            raise SystemExit
        return status


class _Entered:
    """A scope that prints warnings at its end as text if they are errors: the program, which made them so, has
    ended."""

    def __init__(self, scope: Scope, prepare: Callable[[], object], beside: Scope | None) -> None:
        self._scope, self._prepare, self._beside = scope, prepare, beside

    def __enter__(self) -> None:
        try:
            if self._beside is not None:
                self._beside.__enter__()
            self._scope.__enter__()
        except Exception as error:
            raise NotStarted(error) from error
        try:
            self._prepare()
        except Exception as error:
            self._leave(type(error), error, error.__traceback__)
            raise NotStarted(error) from error

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            self._leave(kind, error, traceback)
        self._scope._end.detach()  # it would name a line of ours
        if error is None:
            for tool in self._scope._use.in_vain():
                program_end.tell(f"amanda: [scope] tool '{tool}' looks at backward operators only, and none ran")
        for one in warned:
            if issubclass(one.category, UnmatchedFilterWarning):
                program_end.tell(f"amanda: {one.message}")
                continue
            try:
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
            except Warning as error:
                program_end.tell(f"amanda: {error}")

    def _leave(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._scope.__exit__(kind, error, traceback)
        if self._beside is not None:
            self._beside.__exit__(kind, error, traceback)
            self._beside._end.detach()


def _new_main() -> types.ModuleType:
    """`__main__`, with what Python's own has.

    Where this process is the command, it is the module that there is: libraries that a tool has imported may hold it, as
    dill does. A program that calls the command goes on with its own.
    """
    main = sys.modules["__main__"]
    if not _is_the_commands(main):
        main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.clear()
    names: dict[str, object] = dict.fromkeys(("__doc__", "__package__", "__loader__", "__spec__", "__cached__"))
    if sys.version_info < (3, 14):
        names["__annotations__"] = {}
    main.__dict__.update(names, __name__="__main__", __builtins__=builtins)
    return main


def _is_the_commands(main: types.ModuleType) -> bool:
    """True if it is `python -m amanda`, or the script that pip has installed."""
    name = main.__spec__.name if main.__spec__ is not None else os.path.basename(getattr(main, "__file__", None) or "")
    return name in ("amanda.__main__", "amanda")


def _run_script(path: str, source: bytes | types.CodeType) -> None:
    """As `python path` does. runpy would change sys.argv[0], and remove the module at the end."""
    main = _new_main()
    main.__file__ = path
    is_source = isinstance(source, bytes)
    kind = importlib.machinery.SourceFileLoader if is_source else importlib.machinery.SourcelessFileLoader
    main.__loader__ = kind("__main__", path)
    exec(compile(source, path, "exec", dont_inherit=True) if isinstance(source, bytes) else source, main.__dict__)


def _run_module(name: str, *, alter_argv: bool) -> None:
    """As `python -m name` does: by the function that it calls. `runpy.run_module` would remove the module at the end,
    while threads and functions of atexit may use it."""
    _new_main()
    if alter_argv:
        sys.argv[0] = "-m"  # until the module is found
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without Amanda's frames at its start."""
    while traceback and traceback.tb_frame.f_code.co_filename in (__file__, late_torch.__file__):
        traceback = traceback.tb_next
    return traceback
