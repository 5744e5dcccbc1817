"""`amanda report` makes a page of the folder that `amanda run --out` has written."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from amanda.cli import program_arguments
from amanda.cli.saved_runs import saved_runs

INCOMPLETE = 1  # exit status
PAGE = {"html": ("jinja2", "plotly")}  # and what writes it


def add(commands: Any) -> None:
    """Adds the command `amanda report`."""
    command: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="a page about a run whose results are in a folder",
        description="Writes one HTML file about a run, or about all ranks of one: charts, source code, tables. The exit "
        "status is 1 if something is missing, as after a run that was killed; the page has what is there, and says what "
        "is not.",
        epilog="example: amanda report results -o page.html",
    )
    add_options(command)

    def execute(given: argparse.Namespace) -> None:
        try:
            run(given)
        except (ValueError, OSError) as error:
            command.error(str(error))

    command.set_defaults(run=execute)


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="FOLDER", help="of amanda run --out FOLDER")
    command.add_argument("-o", "--html", metavar="FILE", default="page.html", help="the page (default: %(default)s)")


def run(given: argparse.Namespace) -> None:
    """Writes the page.

    Raises:
        SystemExit: `INCOMPLETE`.
        ValueError: the folder holds no run, or the page's packages are not installed.
        OSError: something cannot be read or written.
    """
    runs = saved_runs(given.folder)
    path = program_arguments.files_of(given, PAGE)["html"]
    from amanda.cli import run_page  # here: it imports jinja2

    run_page.write(path, runs)
    print(f"the page is {given.html}", flush=True)
    problems = [problem for run in runs for problem in run.problems]
    for problem in problems:
        print(f"amanda report: missing: {problem}", file=sys.stderr)
    if problems:
        raise SystemExit(INCOMPLETE)
