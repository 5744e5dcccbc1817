"""`amanda gradients` runs a program, and prints which parameters get no gradient, and where their path ends."""

from __future__ import annotations

import argparse

from amanda.cli import program_end, statuses
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report, program_failed
from amanda.cli.program import Program
from amanda.tools.cuts import GradientCuts


class FindCuts(Command):
    """`amanda gradients`."""

    name = "gradients"
    description = (
        "Runs a program, and prints which of its parameters get no gradient, one that is zero, or no update by an "
        "optimizer, where their path to the loss ends, and why. The exit status is 0 if there are none, 1 if there are "
        "some, 3 if the program fails by itself, and with --strict 4 if something ran that was not looked at."
    )
    example = "amanda gradients train.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--top", type=int, default=20, help="rows of the table (default: %(default)s)")

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints what was found. The exit status is one of `statuses`."""
        tool = GradientCuts()

        def report(made: Report, status: object) -> None:
            if tool.findings():
                made.status = statuses.FOUND
            with made.part("print what was found"):
                print(f"\n{tool.answer(ended_well=program_end.is_success(status))}")
                if tool.rows():
                    print(f"\n{tool.table(top=given.top)}")

        def failed(status: object) -> object:
            return statuses.FOUND if tool.findings() else program_failed("gradients", program.argv[0], status)

        return run_under(tool, program, given, report, coverage=True, failed=failed)
