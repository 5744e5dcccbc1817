"""The files that a command writes the results of one tool to: options, checks, and the writing."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from amanda.cli.command_output import Report
from amanda.reports.results import Results

FILES = ("html", "json", "csv", "parquet")


def add_options(command: argparse.ArgumentParser, page: str) -> None:
    """`page` is what is on the page."""
    command.add_argument("--html", metavar="FILE", help=f"writes a page there: {page}")
    for name in FILES[1:]:
        command.add_argument(f"--{name}", metavar="FILE", help=f"writes all rows there, as {name.upper()}")


def write(
    files: Mapping[str, str], tool: Results[Any, Any], by: str, made: Report, write_html: Callable[[str], object]
) -> None:
    """Writes each file; one that cannot be written does not stop the others."""
    for kind, path in files.items():
        with made.part(f"write {path!r}"):
            if kind == "html":
                write_html(path)
            else:
                getattr(tool, f"to_{kind}")(path, by)
