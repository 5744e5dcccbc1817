"""`amanda doctor`: what this installation is, and what tools would see of a program."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
import io
import os
import platform
import runpy
import sys
import types
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

from amanda import _core, op_context, scope, tool


class _Everything(tool.Tool):
    """Asks for all operators, forward and backward, and wants nothing of them."""

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
    """As `python path`. Not by runpy, which would change sys.argv[0], and take the module away at the end."""
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def environment() -> str:
    """What this installation is, as lines of text."""
    found = [("amanda", f"{_core.__version__}, in {os.path.dirname(__file__)}")]
    found += [("python", f"{platform.python_version()} ({platform.python_implementation()}), {platform.platform()}")]
    if importlib.util.find_spec("torch") is None:
        found += [("torch", "not installed: there is nothing to see")]
    elif importlib.util.find_spec("amanda._torch") is None:
        found += [("torch", "installed, but this build of amanda has no driver for it")]
    else:
        found += _driver()
    width = max(len(name) for name, _ in found)
    return "\n".join(f"{name:{width}}  {value}" for name, value in found)


def _driver() -> list[tuple[str, str]]:
    import torch

    from amanda import _build, _torch

    walk = "direct" if _torch.walks_frames_directly() else "by Python's public functions, slower"
    caught = _torch.caught_types()
    return [
        ("torch", f"{torch.__version__}; this build is for {_build.TORCH_VERSION}, compiled by {_build.COMPILER}"),
        ("dispatch keys", "{} where all tools name operators, {} else".format(*_torch.dispatch_keys())),
        ("walk over frames", walk),
        ("typed kernels", f"{_torch.typed_kernels()} operators"),
        ("caught for filters", f"{caught} operators, for the life of this process" if caught else "nothing"),
    ]


def examine(program: Program, compiled: Literal["eager", "opaque"], top: int) -> None:
    """Runs a program, and prints what a tool that asks for everything saw of it.

    Raises:
        SystemExit: the program's own; or 1 where another exception has ended it, which is printed as Python does.
    """
    covered = scope.apply(_Everything(), compiled=compiled, coverage=True)
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
    print("\n".join(["", covered.coverage().table(top), *_run_eagerly()]), flush=True)
    if status is not None:
        raise SystemExit(status)


def _run_eagerly() -> list[str]:
    """Lines on functions that the program, or a library, compiles, and that did not run compiled."""
    if importlib.util.find_spec("amanda._torch") is None or "torch" not in sys.modules:
        return []
    from amanda import _compiled

    functions = _compiled.functions_run_eagerly()
    if not functions:
        return []
    head = (
        "compiled with torch.compile, but run eagerly here: results may differ from the compiled ones in the last bits"
    )
    return [head, *(f"  {function}" for function in functions)]


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """Without the frames that lead to the program: ours, and runpy's."""
    while traceback and traceback.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>", runpy.__file__):
        traceback = traceback.tb_next
    return traceback
