"""The tools of one run: from the command line and a TOML file, made with their options."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from amanda.cli.tool_spec import ToolSpec
from amanda.core.near_names import did_you_mean
from amanda.core.tool import Tool
from amanda.reports.results import Results

if TYPE_CHECKING:
    from amanda.reports.table import Table


class NamedTool(NamedTuple):
    name: str  # of its files and options; unique in the run
    tool: Tool


class Settings(NamedTuple):
    """The settings that a TOML file may have; a command line adds to them."""

    tools: list[str] = []
    ops: list[str] = []
    modules: list[str] = []
    out: str | None = None
    options: dict[str, dict[str, Any]] = {}

    @classmethod
    def read(cls, path: str) -> Settings:
        """Reads a TOML file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not TOML, or has a key or a value of another kind.
        """
        with open(path, "rb") as file:
            try:
                values = tomllib.load(file)
            except tomllib.TOMLDecodeError as error:
                raise ValueError(f"{path}: {error}") from None
        for key, value in values.items():
            if key not in cls._fields:
                meant = did_you_mean(key, cls._fields)
                raise ValueError(f"{path}: there is no {key!r}; known are {', '.join(cls._fields)}{meant}")
            if not _FITS[key](value):
                raise ValueError(f"{path}: {key} is {_IS[key]}, got {value!r}")
        return cls(**values)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_tables(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(table, dict) for table in value.values())


_FITS = {
    "tools": _is_names,
    "ops": _is_names,
    "modules": _is_names,
    "out": lambda value: isinstance(value, str),
    "options": _is_tables,
}
_IS = dict.fromkeys(("tools", "ops", "modules"), "a list of strings") | {
    "out": "a string",
    "options": "a table for each tool, such as [options.profile]",
}


def made(settings: Settings, assignments: Iterable[str]) -> list[NamedTool]:
    """The tools of a run, each restricted to the operators and modules that it is to see.

    Arguments:
        assignments: "profile.skip=1": the value is a Python literal, or else a string. They win over the settings.

    Raises:
        ValueError: a tool is not known or does not take its arguments, or an option is of none of them.
        Exception: what importing or calling raises.
    """
    specs = _unique(list(map(ToolSpec.parse, settings.tools)))
    options = {name: dict(table) for name, table in settings.options.items()}
    for text in assignments:
        name, key, value = _assignment(text)
        options.setdefault(name, {})[key] = value
    for name in options:
        if name not in specs:
            meant = did_you_mean(name, specs)
            raise ValueError(f"options are given for {name!r}, which is no tool of this run: {', '.join(specs)}{meant}")
    tools = []
    for name, spec in specs.items():
        tool = spec._replace(kwargs=spec.kwargs | options.get(name, {})).make()
        if settings.ops or settings.modules:
            tool.narrow(ops=settings.ops or None, modules=settings.modules or None)
        tools.append(NamedTool(name, tool))
    return tools


def check_by(tools: Iterable[NamedTool], by: str | None) -> None:
    """Raises `ValueError`: no table of these tools has such rows."""
    known = dict.fromkeys(each for _, tool in tools if isinstance(tool, Results) for each in tool.groupings())
    if by is not None and by not in known:
        raise ValueError(_no_such("--by", by, known))


def check_sort(tools: Iterable[NamedTool], by: str | None, sort: str | None) -> None:
    """Raises `ValueError`: no table of these tools has such a column."""
    known = dict.fromkeys(
        column for _, tool in tools if isinstance(tool, Results) for column in tool.sortable(_group(tool, by))
    )
    if sort is not None and sort not in known:
        raise ValueError(_no_such("--sort", sort, known))


def _no_such(option: str, given: str, known: Iterable[str]) -> str:
    names = ", ".join(known) or "not for these tools: they have no tables"
    return f"{option} is {names}; got {given!r}{did_you_mean(given, known)}"


def tables(
    tools: Iterable[NamedTool], by: str | None, top: int | None, sort: str | None
) -> Iterator[tuple[str, Table]]:
    """The name and the table of each tool that has one, with `by` and `sort` for those that know them."""
    for name, tool in tools:
        if isinstance(tool, Results):
            group = _group(tool, by)
            yield name, tool.table(group, top, sort=sort if sort in tool.sortable(group) else None)


def _group(tool: Results[Any, Any], by: str | None) -> str | None:
    return by if by in tool.groupings() else None


def _unique(specs: Sequence[ToolSpec]) -> dict[str, ToolSpec]:
    named: dict[str, ToolSpec] = {}
    for spec in specs:
        count = sum(other.name == spec.name for other in named.values())
        named[f"{spec.name}-{count + 1}" if count else spec.name] = spec
    return named


def _assignment(text: str) -> tuple[str, str, Any]:
    target, equals, value = text.partition("=")
    name, dot, key = target.strip().rpartition(".")
    if not equals or not dot or not name or not key.isidentifier():
        raise ValueError(f"{text!r} is no option: expected TOOL.OPTION=VALUE, as in profile.skip=1")
    try:
        return name, key, ast.literal_eval(value.strip())
    except (SyntaxError, ValueError):
        return name, key, value.strip()
