"""Command: what the commands of `amanda` have in common."""

from __future__ import annotations

import abc
import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from amanda._core import Error
from amanda.cli import misspelt, program_arguments, program_end
from amanda.cli.command_output import Report, run_and_report
from amanda.cli.program import Program
from amanda.core.scope import apply
from amanda.core.tool import Tool

Job = Callable[[], object]
"""The work of a command, once nothing in the command line is wrong."""


class Command(abc.ABC):
    """A command: its texts, its options, and its work."""

    name: ClassVar[str]
    description: ClassVar[str]
    example: ClassVar[str]
    takes_program: ClassVar[bool] = True
    mistakes: ClassVar[tuple[type[Exception], ...]] = (ValueError, ImportError, OSError, Error)
    """Exceptions of `begin` whose text says what is wrong in the command line."""

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Adds its texts and options to its parser; `run` of what that returns runs it."""
        parser.description, parser.epilog = self.description, f"example: {self.example}"
        self.add_options(parser)
        if self.takes_program:
            program_arguments.add(parser)

        def run(given: argparse.Namespace) -> None:
            try:
                job = self.begin(given)
            except self.mistakes as error:
                parser.error(_text_of(error))
            if self.takes_program and (note := misspelt.after_program(parser, given.program)):
                program_end.tell(note)
            job()

        parser.set_defaults(run=run)

    @abc.abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds its own options."""

    def begin(self, given: argparse.Namespace) -> Job:
        """Checks what was given, and returns the work: by default `job` of the program, which must be there."""
        return self.job(program_arguments.required(given), given)

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """The work with a program. Nothing has run yet, and a mistake is still one of the command line."""
        raise NotImplementedError


def _text_of(mistake: Exception) -> str:
    if not isinstance(mistake, ModuleNotFoundError) or mistake.name != "torch":
        return str(mistake)
    return (
        f"it looks at programs of PyTorch, which is not installed for {sys.executable}; with TensorFlow and ONNX Runtime, "
        "use ls, profile, flops, nan, diff, trace, watch or run"
    )


def run_under(
    tool: Tool,
    program: Program,
    given: argparse.Namespace,
    report: Callable[[Report, object], object],
    *,
    coverage: bool = False,
    also: Sequence[Tool] = (),
    **more: Any,
) -> Job:
    """Runs a program under a tool, in a scope with the options of the command line, and then `report`.

    Arguments:
        coverage: counts what the tool was not shown, also without --strict.
        also: other tools of the scope.
        more: what else `run_and_report` takes.
    """
    scope = apply(tool, *also, **program_arguments.options(given), coverage=coverage or given.strict)
    return functools.partial(run_and_report, program, scope, report, strict=given.strict, **more)
