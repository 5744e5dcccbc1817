"""`amanda inplace` runs a program, and prints which operator wrote to a tensor that the backward pass needs."""

from __future__ import annotations

import argparse

from amanda.cli import program_end, statuses
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report, program_failed
from amanda.cli.program import Program
from amanda.tools.inplace import InplaceErrors


class FindWrites(Command):
    """`amanda inplace`."""

    name = "inplace"
    description = (
        'Runs a program. If it ends with PyTorch\'s error "modified by an inplace operation", prints which operator had '
        'saved the tensor, which have written to it since, and what to change. If it ends with "backward through the graph '
        'a second time", prints which operator goes on with the graph of an earlier pass. The exit status is 0 if there '
        "was no such error, 1 if there was one, 3 if the program fails by itself, and with --strict 4 if something ran "
        "that was not looked at."
    )
    example = "amanda inplace train.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """It has none."""

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints what was found. The exit status is one of `statuses`."""
        tool = InplaceErrors()

        def report(made: Report, status: object) -> None:
            if tool.findings() or tool.unexplained:
                made.status = statuses.FOUND
            with made.part("print what was found"):
                print(f"\n{tool.answer(ended_well=program_end.is_success(status))}")

        def failed(status: object) -> object:
            return (
                statuses.FOUND
                if tool.findings() or tool.unexplained
                else program_failed("inplace", program.argv[0], status)
            )

        return run_under(tool, program, given, report, coverage=True, failed=failed)
