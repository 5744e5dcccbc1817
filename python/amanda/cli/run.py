"""`amanda run` runs a program under tools that are named on the command line, and hands out what they found."""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Sequence
from typing import Any

from amanda.cli import program_arguments, writes
from amanda.cli.command import Command, Job
from amanda.cli.command_output import Report, run_and_report
from amanda.cli.live_table import live
from amanda.cli.program import Program
from amanda.cli.run_folder import FORMATS, RunFolder, begun, ended
from amanda.cli.saved_runs import SavedRun
from amanda.cli.tool_list import NamedTool, Settings, check_by, check_sort, made, tables
from amanda.cli.tool_spec import SHIPPED
from amanda.core import scope
from amanda.core.coverage.section import section_of
from amanda.core.schedule import Schedule
from amanda.core.scheduled_scope import scheduled
from amanda.reports.rank import this_rank
from amanda.reports.results import Results
from amanda.reports.sections import Section
from amanda.reports.tool_sections import sections_of
from amanda.toolkit.optimizers import register_optimizer_step_post_hook

TOP = 20


class Run(Command):
    """`amanda run`."""

    name = "run"
    description = (
        "Runs a program under tools, and prints what they found, or writes it to a folder, also after an "
        "exception or Ctrl-C. Its exit status is the program's."
    )
    example = "amanda run -t profile -t 'magnitude_pruning(sparsity=0.9)' --by module --out results train.py"
    mistakes = (*Command.mistakes, TypeError)  # of the arguments of tools

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        option = parser.add_argument
        option(
            "-t",
            "--tool",
            dest="tools",
            action="append",
            default=[],
            metavar="TOOL",
            help=f"one of {', '.join(SHIPPED)}; or MODULE:CLASS or FILE.py:CLASS; arguments in parentheses; may be "
            "repeated",
        )
        _add_result_options(parser)
        option(
            "--schedule",
            metavar="NAME=STEPS,...",
            help="only some steps of training, as amanda.Schedule: wait=1,warmup=1,active=3; an optimizer ends a step",
        )
        option("--config", metavar="FILE", help="TOML with tools, ops, modules, out and [options.TOOL]")

    def job(self, program: Program, given: argparse.Namespace) -> Job:
        """Prints what the tools of the command line found, or writes it."""
        return run(program, settings_of(given), given)


def _add_result_options(command: argparse.ArgumentParser) -> None:
    option = command.add_argument
    option(
        "-o",
        "--option",
        dest="assignments",
        action="append",
        default=[],
        metavar="TOOL.OPTION=VALUE",
        help="an argument of a tool, as profile.skip=1",
    )
    for name in ("ops", "modules"):
        option(
            f"--{name}", action="append", default=[], metavar="NAMES", help=f"only these {name}: a,b* (default: all)"
        )
    option("--by", help="what a row of the printed tables stands for, where a tool has it: op, module, line")
    option("--sort", metavar="COLUMN", help="of the printed tables, where a tool has it")
    option("--top", type=int, default=TOP, help="rows of each printed table (default: %(default)s)")
    option("--out", metavar="FOLDER", help="writes the results there instead of printing them")
    option("--html", metavar="FILE", help="writes a page there, too: charts, source code, tables")
    option("--coverage", action="store_true", help="counts the operators that no tool saw, too; --html always does")
    option("--overwrite", action="store_true", help="replaces the run that --out holds")
    option(
        "--format", default="json", metavar="NAMES", help=f"of results in --out: {','.join(FORMATS)} (default: json)"
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
        out=settings.out if given.out is None else given.out,
    )
    unknown = [name for name in given.format.split(",") if name not in FORMATS]
    if unknown:
        raise ValueError(f"--format is {', '.join(FORMATS)}, got {unknown[0]!r}")
    if not settings.tools:
        raise ValueError("expected a tool: -t profile")
    return settings


def run(program: Program, settings: Settings, given: argparse.Namespace) -> Job:
    """The run of a program under the tools of `settings`.

    Raises:
        ValueError, OSError: the tools cannot be made, or the folder cannot be written to.
    """
    tools = made(settings, given.assignments)
    check_by(tools, given.by)
    check_sort(tools, given.by, given.sort)
    names = [name for name, _ in tools]
    page = _of_this_rank(program_arguments.files_of(given, ["html"]).get("html"))
    folder = None
    if settings.out is not None:
        folder = RunFolder(settings.out, program.argv, names, given.format.split(","), given.overwrite)
    covers = given.coverage or given.strict or page is not None
    entered = _scope(tools, given.schedule, {**program_arguments.options(given), "coverage": covers})
    about = begun(program.argv, names)
    started = time.monotonic()

    def report(made: Report, status: object) -> None:
        runs = _runs(entered)
        ran = f"{runs:,} operator{'s' * (runs != 1)} ran, in {_seconds(started)}, under {', '.join(names)}"
        with made.part("print how much ran"):
            print(f"\n{ran}")
        coverage = section_of(entered.coverage()) if covers else None
        if folder is not None:
            _write(folder, tools, coverage, made, given)
            with made.part("write how the run ended"):
                folder.close(status, runs)
                print(f"results are in {folder.path}")
        else:
            for named in tools:
                _print(named, made, given)
            if given.coverage:
                with made.part("print the coverage"):
                    print(f"\ncoverage\n{entered.coverage().table(given.top)}")
        if page is not None:
            with made.part(f"write {page!r}"):
                _write_page(page, SavedRun({**about, **ended(status, runs)}, _sections(tools, coverage)))

    shown = live(lambda: f"{', '.join(names)}: {_seconds(started)}, {_runs(entered):,} operators")
    begin = folder.begin if folder is not None else lambda: None
    # Steps that a schedule leaves out cost nothing.
    beside = writes.recorded(given) if given.schedule is None else None
    more: dict[str, Any] = {"shown": shown, "prepare": begin, "strict": given.strict, "beside": beside}
    return functools.partial(run_and_report, program, entered, report, **more)


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
    return scheduled(*(tool for _, tool in tools), schedule=phases, steps=register_optimizer_step_post_hook, **options)


def _print(named: NamedTool, made: Report, given: argparse.Namespace) -> None:
    with made.part(f"print the table of {named.name}"):
        answer = getattr(named.tool, "answer", str)()
        if answer:
            print(f"\n{named.name}\n{answer}")
        for name, table in tables([named], given.by, given.top, given.sort):
            print(table if answer else f"\n{name}\n{table}")


def _write(
    folder: RunFolder, tools: Sequence[NamedTool], coverage: Section | None, made: Report, given: argparse.Namespace
) -> None:
    if coverage is not None:
        with made.part("write the coverage"):
            folder.write_page("coverage", lambda: [coverage])
    for named in tools:
        written = False
        if isinstance(named.tool, Results):
            with made.part(f"write the results of {named.name}"):
                folder.write(named.name, named.tool)
                written = True
            if not written:
                _print(named, made, given)


def _sections(tools: Sequence[NamedTool], coverage: Section | None) -> list[Section]:
    sections = [coverage] if coverage is not None else []
    for name, tool in tools:
        sections += sections_of(name, tool) if isinstance(tool, Results) else []
    return sections


def _write_page(path: str, run: SavedRun) -> None:
    from amanda.cli import run_page  # here: it imports jinja2

    run_page.write(path, [run])


def _of_this_rank(path: str | None) -> str | None:
    """The path with the rank that the launcher sets before the program runs. Processes that the program itself starts
    print and write nothing."""
    stem, extension = os.path.splitext(path or "")
    return f"{stem}{this_rank().suffix}{extension}" if path is not None else None


def _names(texts: Sequence[str]) -> list[str]:
    return [name for text in texts for name in text.split(",")]


def _seconds(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"


def _runs(entered: scope.Scope) -> int:
    known = entered.cache_info()
    return known.hits + known.currsize
