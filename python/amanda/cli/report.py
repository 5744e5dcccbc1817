"""`amanda report` makes a page of the folder that `amanda run --out` has written."""

from __future__ import annotations

import argparse
import functools
import sys

from amanda.cli import program_arguments, program_end
from amanda.cli.command import Command, Job
from amanda.cli.saved_runs import saved_runs

INCOMPLETE = 1  # exit status


class MakePage(Command):
    """`amanda report`."""

    name = "report"
    help = "a page about a run whose results are in a folder"
    description = (
        "Writes one HTML file about a run, or about all ranks of one: charts, source code, tables. The exit "
        "status is 1 if something is missing, as after a run that was killed; the page has what is there, and says what "
        "is not."
    )
    example = "amanda report results -o page.html"
    takes_program = False

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folder", metavar="FOLDER", help="of amanda run --out FOLDER")
        parser.add_argument("-o", "--html", metavar="FILE", default="page.html", help="the page (default: %(default)s)")

    def begin(self, given: argparse.Namespace) -> Job:
        """Writes the page: what cannot be read or written is a mistake in the command line."""
        runs = saved_runs(given.folder)
        path = program_arguments.files_of(given, ["html"])["html"]
        from amanda.cli import run_page  # here: it imports jinja2

        run_page.write(path, runs)
        print(f"the page is {given.html}", flush=True)
        problems = [problem for run in runs for problem in run.problems]
        for problem in problems:
            print(f"amanda report: missing: {problem}", file=sys.stderr)
        return functools.partial(program_end.leave, INCOMPLETE if problems else None)
