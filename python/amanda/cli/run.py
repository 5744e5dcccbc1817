"""`amanda run` runs a program under tools that are named on the command line, and hands out what they found."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from amanda import scope
from amanda.cli import program_arguments
from amanda.cli.live_table import live
from amanda.cli.program import Program
from amanda.cli.run_folder import NEEDS, RunFolder, begun, ended
from amanda.cli.saved_runs import SavedRun
from amanda.cli.tool_list import NamedTool, Settings, check_by, check_rich, made, tables
from amanda.cli.tool_spec import SHIPPED
from amanda.coverage.section import section_of
from amanda.reports.rank import this_rank
from amanda.reports.results import Results
from amanda.reports.sections import Section
from amanda.reports.tool_sections import sections_of
from amanda.schedule import Schedule
from amanda.scheduled_scope import scheduled

TOP = 20
NOT_WRITTEN = 2  # exit status
PAGE = {"html": ("jinja2", "rich", "plotly")}  # and what writes it


def add(commands: Any) -> None:
    """Adds the command `amanda run`."""
    command: argparse.ArgumentParser = commands.add_parser(
        "run",
        help="a program under any tools, and what they found",
        description="Runs a program under tools, and prints what they found, or writes it to a folder, also after an "
        "exception or Ctrl-C. Its exit status is the program's.",
        epilog="example: amanda run -t profile -t 'magnitude_pruning(sparsity=0.9)' --by module --out results train.py",
    )
    add_options(command)
    program_arguments.add(command)

    def execute(given: argparse.Namespace) -> None:
        program = program_arguments.required(command, given)
        try:
            run(program, settings_of(given), given, program_arguments.options(given))
        except (ValueError, TypeError, ImportError, OSError) as error:  # the program's own are printed as Python does
            command.error(str(error))

    command.set_defaults(run=execute)


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-t",
        "--tool",
        dest="tools",
        action="append",
        default=[],
        metavar="TOOL",
        help=f"one of {', '.join(SHIPPED)}; or MODULE:CLASS or FILE.py:CLASS; arguments in parentheses; may be repeated",
    )
    add_result_options(command)
    command.add_argument(
        "--schedule",
        metavar="NAME=STEPS,...",
        help="only some steps of training, as amanda.Schedule: wait=1,warmup=1,active=3; an optimizer ends a step",
    )
    command.add_argument("--config", metavar="FILE", help="TOML with tools, ops, modules, out and [options.TOOL]")


def add_result_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-o",
        "--option",
        dest="assignments",
        action="append",
        default=[],
        metavar="TOOL.OPTION=VALUE",
        help="an argument of a tool, as profile.skip=1",
    )
    for name in ("ops", "modules"):
        command.add_argument(
            f"--{name}", action="append", default=[], metavar="NAMES", help=f"only these {name}: a,b* (default: all)"
        )
    command.add_argument(
        "--by", help="what a row of the printed tables stands for, where a tool has it: op, module, line"
    )
    command.add_argument("--sort", metavar="COLUMN", help="of the printed tables, where a tool has it")
    command.add_argument("--top", type=int, default=TOP, help="rows of each printed table (default: %(default)s)")
    command.add_argument("--out", metavar="FOLDER", help="writes the results there instead of printing them")
    command.add_argument("--html", metavar="FILE", help="writes a page there, too: charts, source code, tables")
    command.add_argument(
        "--coverage", action="store_true", help="counts the operators that no tool saw, too; --html always does"
    )
    command.add_argument("--overwrite", action="store_true", help="replaces the run that --out holds")
    command.add_argument(
        "--format", default="json", metavar="NAMES", help=f"of results in --out: {','.join(NEEDS)} (default: json)"
    )


def settings_of(given: argparse.Namespace) -> Settings:
    """The settings of a command line, and of the file that it names.

    Raises:
        OSError: the file cannot be read.
        ValueError: something in it, or an option, is wrong.
    """
    config = getattr(given, "config", None)
    settings = Settings.read(config) if config else Settings()
    settings = settings._replace(
        tools=settings.tools + given.tools,
        ops=settings.ops + _names(given.ops),
        modules=settings.modules + _names(given.modules),
        out=given.out or settings.out,
    )
    unknown = [name for name in given.format.split(",") if name not in NEEDS]
    if unknown:
        raise ValueError(f"--format is {', '.join(NEEDS)}, got {unknown[0]!r}")
    if not settings.tools:
        raise ValueError("expected a tool: -t profile")
    return settings


def run(program: Program, settings: Settings, given: argparse.Namespace, options: dict[str, Any]) -> None:
    """Runs a program under the tools of `settings`, in a scope with these options.

    Raises:
        ValueError, OSError: the tools cannot be made, or the folder cannot be written to; nothing ran.
        SystemExit: the program's own; or 1 where another exception has ended it, which is printed as Python does.
    """
    tools = made(settings, given.assignments)
    check_by(tools, given.by)
    names = [name for name, _ in tools]
    page = program_arguments.files_of(given, PAGE).get("html")
    folder = None
    if not settings.out:
        check_rich(tools)
    else:
        folder = RunFolder(settings.out, program.argv, names, given.format.split(","), given.overwrite)
    covers = given.coverage or page is not None
    entered = _scope(tools, given.schedule, {**options, "coverage": covers})
    about = begun(program.argv, names)
    if folder is not None:
        folder.begin()
    started = time.monotonic()
    with live(lambda: f"{', '.join(names)}: {_seconds(started)}, {_runs(entered):,} operators"):
        status = program.run_in(entered)
    ran = f"{_runs(entered):,} operators ran, in {_seconds(started)}, under {', '.join(names)}"
    print(f"\n{ran}", flush=True)
    coverage = section_of(entered.coverage()) if covers else None
    if folder is None:
        for name, table in tables(tools, given.by, given.top, given.sort):
            print(f"\n{name}\n{table}", flush=True)
        if given.coverage:
            print(f"\ncoverage\n{entered.coverage().table(given.top)}", flush=True)
    else:
        failed = _write(folder, tools, coverage, status, _runs(entered))
        status = status or failed
    if page is not None:
        from amanda.cli import run_page  # here: it imports jinja2

        sections: list[Section] = [coverage] if coverage is not None else []
        for name, tool in tools:
            sections += sections_of(name, tool) if isinstance(tool, Results) else []
        stem, extension = os.path.splitext(page)
        run_page.write(
            f"{stem}{this_rank().suffix}{extension}", [SavedRun({**about, **ended(status, _runs(entered))}, sections)]
        )
    if status is not None:
        raise SystemExit(status)


def _scope(tools: Sequence[NamedTool], schedule: str | None, options: dict[str, Any]) -> scope.Scope:
    if schedule is None:
        return scope.apply(*(tool for _, tool in tools), **options)
    try:
        steps = {name.strip(): int(number) for name, _, number in (text.partition("=") for text in schedule.split(","))}
        phases = Schedule(**steps)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"--schedule is NAME=STEPS,... as wait=1,warmup=1,active=3; got {schedule!r}: {error}"
        ) from None
    from torch.optim.optimizer import register_optimizer_step_post_hook  # here: other runs need no torch

    every_optimizer = register_optimizer_step_post_hook
    return scheduled(*(tool for _, tool in tools), schedule=phases, steps=every_optimizer, **options)


def _write(
    folder: RunFolder, tools: Sequence[NamedTool], coverage: Section | None, status: object, operators: int
) -> int | None:
    """Writes what can be written. Returns an exit status if something cannot."""
    failed = None
    parts: list[tuple[str, Callable[[], None]]] = []
    if coverage is not None:
        parts.append(("coverage", lambda: folder.write_page("coverage", lambda: [coverage])))
    parts += [(name, partial(folder.write, name, tool)) for name, tool in tools if isinstance(tool, Results)]
    for name, write in parts:
        try:
            write()
        except OSError as error:
            failed = NOT_WRITTEN
            print(f"amanda run: can't write the results of {name}: {error}", file=sys.stderr)
    try:
        folder.close(status, operators)
        print(f"results are in {folder.path}", flush=True)
    except OSError as error:
        failed = NOT_WRITTEN
        print(f"amanda run: can't write how the run ended: {error}", file=sys.stderr)
    return failed


def _names(texts: Sequence[str]) -> list[str]:
    return [name for text in texts for name in text.split(",")]


def _seconds(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"


def _runs(entered: scope.Scope) -> int:
    known = entered.cache_info()
    return known.hits + known.currsize
