"""`amanda nan` runs a program, and prints which operator produced the first NaN."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Sequence

from amanda.cli import program_end, statuses
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report, program_failed
from amanda.cli.program import Program
from amanda.core.evidence import Evidence, counted
from amanda.tools.nonfinite import Finding, NaNSentinel


class FindNan(Command):
    """`amanda nan`."""

    name = "nan"
    help = "which operator of a program produced the first NaN"
    description = (
        "Runs a program until an operator produces a NaN, forward or backward, and prints which, where, and "
        "its operands. Its exit status is 0 if there was none, 1 if there was a NaN, 3 if the program fails by itself, and "
        "with --strict 4 if something ran that was not looked at."
    )
    example = "amanda nan --inf --allow-op softmax train.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        option = parser.add_argument
        option("--inf", action="store_true", help="infinities count, too")
        option("--forward", action="store_true", help="gradients are not looked at")
        option("--all", action="store_true", help="goes on after the first, and prints all that produced some")
        for what, example in (("op", "softmax"), ("module", "'*.attention'"), ("line", "masks.py:12")):
            option(
                f"--allow-{what}", action="append", default=[], metavar="NAME", help=f"that may produce some: {example}"
            )

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints what was found. The exit status is one of `statuses`."""
        sentinel = NaNSentinel(
            inf=given.inf,
            backward=not given.forward,
            action="warn" if given.all else "raise",
            allow_ops=given.allow_op,
            allow_modules=given.allow_module,
            allow_lines=given.allow_line,
        )
        what = "NaN or infinity" if given.inf else "NaN"

        def report(made: Report, status: object) -> None:
            findings = sentinel.findings()
            if findings:
                made.status = statuses.FOUND
            with made.part("print what was found"):
                if given.all:
                    for finding in findings:
                        print(f"\n{finding}\n  in {sentinel.runs(finding)} runs")
                found = _found(what, findings, sentinel.propagated)
                if any(finding.kind == "unread" for finding in findings) and not sentinel.evidence().is_complete:
                    found += f"; not looked at: {sentinel.evidence().not_looked_at}"
                print(f"\n{found if findings else _nothing(what, sentinel.evidence(), program_end.is_success(status))}")

        def failed(status: object) -> object:
            return statuses.FOUND if sentinel.findings() else program_failed("nan", program.argv[0], status)

        return run_under(sentinel, program, given, report, coverage=True, failed=failed)


def _found(what: str, findings: Sequence[Finding], propagated: int) -> str:
    kinds: collections.Counter[str] = collections.Counter(finding.kind for finding in findings)
    parts = [f"{counted(kinds[kind], 'operator')} {words}" for kind, words in _KINDS.items() if kinds[kind]]
    passed = f", and {propagated} runs of others passed it on" if propagated else ""
    return f"{what}: {', '.join(parts)}{passed}"


_KINDS = {
    "produced": "produced some",
    "given": "got some that no operator seen here produced",
    "unread": "had some, and was given what no tool can read",
}


def _nothing(what: str, evidence: Evidence, ended_well: bool) -> str:
    """Says that nothing was found, in other words where something was not looked at."""
    until = "" if ended_well else " until the program failed"
    if evidence.is_complete:
        return f"no {what} was produced{until}, in {evidence.looked_at}"
    return f"no {what} was found{until} in {evidence.looked_at}; not looked at: {evidence.not_looked_at}"
