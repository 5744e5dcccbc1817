"""`amanda nan` runs a program, and prints which operator produced the first NaN."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterator, Sequence

from amanda.cli import program_end, statuses, writes
from amanda.cli.command import Command, Job, run_under
from amanda.cli.command_output import Report, program_failed
from amanda.cli.program import Program
from amanda.core.evidence import counted
from amanda.tools.compiled_diff import CompiledDiff
from amanda.tools.nonfinite import Finding, NaNSentinel


class FindNan(Command):
    """`amanda nan`."""

    name = "nan"
    description = (
        "Runs a program until an operator produces a NaN, forward or backward, and prints which, where, its operands, "
        "and the operators from which it came. Its exit status is 0 if there was none, 1 if there was a NaN, 3 if the "
        "program fails by itself, and with --strict 4 if something ran that was not looked at."
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

        alone = CompiledDiff(only_nonfinite=True, backward=not given.forward)

        def report(made: Report, status: object) -> None:
            findings = sentinel.findings()
            if findings or alone.differs:
                made.status = statuses.FOUND
            with made.part("print what was found"):
                print(f"\n{sentinel.answer(ended_well=program_end.is_success(status))}")
                for text in _texts(sentinel, findings) if given.all else ():
                    print(f"\n{text}")
                if alone.differs:
                    print(f"\nin the code of compiled functions as it runs without tools:\n{alone.answer()}")

        def failed(status: object) -> object:
            found = sentinel.findings() or alone.differs
            return statuses.FOUND if found else program_failed("nan", program.argv[0], status)

        beside = writes.recorded(given)
        return run_under(sentinel, program, given, report, coverage=True, also=[alone], failed=failed, beside=beside)


def _texts(sentinel: NaNSentinel, findings: Sequence[Finding]) -> Iterator[str]:
    """Each finding; those that look the same, as two operators of one line do, with the ids that `amanda ls` lists."""
    heads = collections.Counter(str(finding).partition("\n")[0] for finding in findings)
    for place, finding in enumerate(findings):
        number = f", of the operator with id {finding.op_id:#x}" if heads[str(finding).partition("\n")[0]] > 1 else ""
        runs, reached = counted(sentinel.runs(finding), "run"), sentinel.reached(finding)
        yield "\n  ".join(filter(None, (finding.text(first=not place), reached, f"in {runs}{number}")))
