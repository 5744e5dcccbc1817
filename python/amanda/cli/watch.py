"""`amanda watch` runs a program, and writes down how its operators, gradients and parameters change over time."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from amanda.cli import program_arguments
from amanda.cli.command import Command, Job
from amanda.cli.command_output import Report, run_and_report
from amanda.cli.live_table import live
from amanda.cli.program import Program
from amanda.core.evidence import counted
from amanda.core.schedule import Schedule
from amanda.core.scheduled_scope import scheduled
from amanda.reports.progress import live_bar
from amanda.toolkit.optimizers import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from amanda.tools.history import History


class Watch(Command):
    """`amanda watch`."""

    name = "watch"
    description = (
        "Runs a program, and takes statistics of its operators, gradients and parameters in some of the steps "
        "of its optimizers. Prints a table, and alarms: divergence, vanishing, exploding and missing gradients, dead "
        "units. Its exit status is the program's."
    )
    example = "amanda watch --every 10 --tensorboard runs/1 --parquet out/1 train.py"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        option = parser.add_argument
        option("--every", type=int, default=1, metavar="N", help="only each N-th step of an optimizer (default: all)")
        option("--skip-first", type=int, default=0, metavar="N", help="not the first N steps")
        option("--parquet", metavar="FOLDER", help="writes all values there, as Parquet files")
        option("--tensorboard", metavar="FOLDER", help="writes all values there, for TensorBoard")
        option("--histograms", action="store_true", help="of gradients and updates, in these files")
        option("--top", type=int, default=20, help="rows of the table (default: %(default)s)")

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints the loss, gradients, updates and alarms, and a table of the series."""
        schedule = Schedule(every=given.every, skip_first=given.skip_first)
        if given.histograms and not (given.parquet or given.tensorboard):
            raise ValueError("--histograms are written to files: give --tensorboard FOLDER, or --parquet FOLDER")
        files = {"parquet": given.parquet, "tensorboard": given.tensorboard, "histograms": given.histograms}
        history = History(**files, find_loss=True, find_cuts=True)
        options = program_arguments.options(given)
        steps = register_optimizer_step_post_hook
        scope = scheduled(history, schedule=schedule, steps=steps, **options, coverage=given.strict)

        def report(made: Report, status: object) -> None:
            with made.part("print the table"):
                looked = len({row.step for row in history.rows("step")})
                print(f"\n{counted(scope.step_number, 'step')}, {looked:,} of them looked at\n{history.answer()}")
                print(f"\n{history.table(top=given.top)}")

        def what() -> str:
            return f"watching {program.argv[0]}, {len(history.alarms)} alarms, steps"

        shown = _watching_optimizers(history, live_bar(None, lambda: scope.step_number, what))
        return functools.partial(run_and_report, program, scope, report, shown=shown, strict=given.strict)


@contextlib.contextmanager
def _watching_optimizers(history: History, shown: Callable[[], Any]) -> Iterator[None]:
    """The parameters of each optimizer are compared from its first step on; a terminal shows what `shown` returns."""
    known: set[int] = set()

    def watch(optimizer: Any) -> None:
        if id(optimizer) not in known:
            known.add(id(optimizer))  # the history keeps it alive
            history.watch(optimizer)

    handle = register_optimizer_step_pre_hook(watch)
    try:
        with live(shown):
            yield
    finally:
        handle.remove()
