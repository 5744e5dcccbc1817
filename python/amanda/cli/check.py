"""`amanda check` runs a program, and prints the mistakes that rules find in it."""

from __future__ import annotations

import argparse

from amanda.cli import program_end, statuses
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report, program_failed
from amanda.cli.program import Program
from amanda.tools.check import RULES, Check


class CheckProgram(Command):
    """`amanda check`."""

    name = "check"
    description = (
        "Runs a program, and prints what rules find in it: gradients that are not cleared, a loss that broadcasts, dropout "
        "in evaluation, and others, each with its line and a fix. The exit status is 0 if nothing was found, 1 if "
        "something was, 3 if the program fails by itself, and with --strict 4 if something ran that was not looked at."
    )
    example = "amanda check --allow labels:data.py train.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        option = parser.add_argument
        option("--list", action="store_true", help="prints the rules, and runs nothing")
        option("--advice", action="store_true", help="also rules for which right programs may have reasons")
        option("--only", action="append", default=[], metavar="RULES", help="these rules alone: labels,all-frozen")
        option(
            "--allow",
            action="append",
            default=[],
            metavar="RULE[:WHERE]",
            help="no finding of a rule, in a module, file or line: labels:data.py:12; may be repeated",
        )

    def begin(self, given: argparse.Namespace) -> Job:
        """Prints the rules, or runs the program."""
        return (lambda: print(rules())) if given.list else super().begin(given)

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints what was found. The exit status is one of `statuses`."""
        only = [name.strip() for names in given.only for name in names.split(",")]
        check = Check(only=only, advice=given.advice, allow=given.allow)

        def report(made: Report, status: object) -> None:
            if check.findings():
                made.status = statuses.FOUND
            with made.part("print what was found"):
                print(f"\n{check.answer(ended_well=program_end.is_success(status))}")

        def failed(status: object) -> object:
            return statuses.FOUND if check.findings() else program_failed("check", program.argv[0], status)

        return run_under(check, program, given, report, coverage=True, failed=failed)


def rules() -> str:
    """A line for each rule."""
    width = max(len(rule.name) for rule in RULES)
    lines = [f"  {rule.name:{width}}  {rule.sentence}" for rule in RULES if not rule.is_advice]
    advice = [f"  {rule.name:{width}}  {rule.sentence}" for rule in RULES if rule.is_advice]
    return "\n".join([*lines, "\nwith --advice:", *advice])
