"""`amanda report` makes a page of the folder that `amanda run --out` has written."""

from __future__ import annotations

import argparse
import functools
import os
import sys

from amanda.cli import program_arguments, program_end
from amanda.cli.command import Command, Job
from amanda.cli.saved_runs import saved_runs

INCOMPLETE = 1  # exit status


class MakePage(Command):
    """`amanda report`."""

    name = "report"
    description = (
        "Writes one HTML file about a run, or about all ranks of one: charts, source code, tables. Two folders are "
        "compared: each table has the numbers of both, and their differences. The exit "
        "status is 1 if something is missing, as after a run that was killed; the page has what is there, and says what "
        "is not."
    )
    example = "amanda report results -o page.html"
    takes_program = False

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "folders", metavar="FOLDER", nargs="+", help="of amanda run --out FOLDER; one, or two to compare"
        )
        parser.add_argument("-o", "--html", metavar="FILE", default="page.html", help="the page (default: %(default)s)")

    def begin(self, given: argparse.Namespace) -> Job:
        """Writes the page: what cannot be read or written is a mistake in the command line."""
        if len(given.folders) > 2:
            raise ValueError(f"a page is about one run or two, got {len(given.folders)} folders")
        of_folders = [saved_runs(folder) for folder in given.folders]
        path = program_arguments.files_of(given, ["html"])["html"]
        from amanda.cli import run_page  # here: it imports jinja2

        if len(of_folders) == 1:
            run_page.write(path, of_folders[0])
        else:
            run_page.write_two(path, of_folders[0], of_folders[1], _names(*given.folders))
        print(f"the page is {given.html}", flush=True)
        problems = [problem for runs in of_folders for run in runs for problem in run.problems]
        for problem in problems:
            print(f"amanda report: missing: {problem}", file=sys.stderr)
        return functools.partial(program_end.leave, INCOMPLETE if problems else None)


def _names(first: str, second: str) -> tuple[str, str]:
    """The names of two folders: the last parts of their paths in which they differ."""
    parts = [os.path.abspath(folder).split(os.sep) for folder in (first, second)]
    differing = [(a, b) for a, b in zip(*map(reversed, parts), strict=False) if a != b]
    return differing[0] if differing else ("first", "second")
