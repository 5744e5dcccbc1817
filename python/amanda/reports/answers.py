"""Words of answers: the sentences that a tool says before its table."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Sequence

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # a whole part of a path, as in "encoder.layer.0.output"
_UNITS = ("B", "KB", "MB", "GB", "TB")


def percent(share: float) -> str:
    """A share, 0 to 1: "93%". Only all is 100%, and only nothing is 0%."""
    if 0 < share < 0.01:
        return "less than 1%"
    return "over 99%" if 0.99 < share < 1 else f"{share:.0%}"


def seconds(value: float) -> str:
    """ "12.3 s", "0.15 s", "3.1 ms"."""
    if value >= 10:
        return f"{value:,.1f} s"
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1e3:.1f} ms"


def size(count: float) -> str:
    """Bytes: "5.74 MB"."""
    power = 0
    while abs(count) >= 1000 and power + 1 < len(_UNITS):
        count, power = count / 1000, power + 1
    return f"{count:.3g} {_UNITS[power]}"


def ordinal(number: int) -> str:
    """ "1st", "2nd", "11th"."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def pattern_of(path: str) -> str:
    """The path with * for each of its parts that is a number: layers that differ in these do the same."""
    return _NUMBER.sub("*", path)


def folded(paths: Iterable[str], most: int = 3) -> str:
    """Paths of modules or parameters in few words: layers as one, "encoder.layer.*.output"; many as what they begin with,
    "encoder.layer.*" or "encoder.*, head.*"; a single one as it is."""
    known = list(dict.fromkeys(filter(None, paths)))
    groups: dict[str, list[str]] = {}
    for path in known:
        groups.setdefault(pattern_of(path), []).append(path)
    texts = list(map(_merged, groups.values()))
    if len(texts) <= most:
        return ", ".join(texts)
    common = list(_common_parts([pattern.split(".") for pattern in groups]))
    if common:
        return f"{'.'.join(common)}{'' if common[-1] == '*' else '.*'}"
    parts = list(dict.fromkeys(f"{path}.".partition(".")[0] for path in known))  # of the outermost module
    if len(parts) > most:
        return f"{texts[0]} and {len(texts) - 1} more"
    return ", ".join(one if one in known else f"{one}.*" for one in parts)


def _merged(paths: Sequence[str]) -> str:
    """Paths with one pattern as one, with * for the numbers in which they differ."""
    by_place = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in by_place)


def _common_parts(paths: Sequence[Sequence[str]]) -> Iterator[str]:
    """The parts with which all paths begin."""
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            return
        yield parts[0]


def main_part(costs: Sequence[tuple[str, float]], least: float = 0.5) -> tuple[str, float]:
    """The innermost group of modules that has at least this share of all costs, and its share; ("", 0) if there is none.

    Arguments:
        costs: paths of modules, each with what it costs without its submodules.
    """
    total = sum(cost for _, cost in costs)
    sums: dict[str, float] = collections.defaultdict(float)
    members: dict[str, set[str]] = collections.defaultdict(set)
    for path, cost in costs:
        parts = path.split(".") if path else []
        for depth in range(1, len(parts) + 1):
            prefix = ".".join(parts[:depth])
            pattern = prefix if prefix.replace(".", "").isdigit() else pattern_of(prefix)
            sums[pattern] += cost
            members[pattern].add(prefix)
    named = {pattern: _merged(sorted(members[pattern])) for pattern, cost in sums.items() if cost >= least * total > 0}
    enough = [(name.count("."), name, pattern) for pattern, name in named.items()]
    if not enough:
        return "", 0.0
    _, name, pattern = max(enough)
    return name, sums[pattern] / total


def code_of(source: str) -> str:
    """The line of code of "model.py:12", as a few words in backquotes; "" if its file can't be read."""
    import linecache

    path, _, number = source.rpartition(":")
    code = linecache.getline(path, int(number)).strip() if number.isdigit() else ""
    return f"`{code if len(code) <= MOST_CODE else code[: MOST_CODE - 1] + '…'}`" if code else ""


MOST_CODE = 60
