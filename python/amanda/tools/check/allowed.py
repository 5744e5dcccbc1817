"""Allowed: what a user permits, by `allow=` and by comments in the program."""

from __future__ import annotations

import fnmatch
import linecache
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from amanda.toolkit import Place
from amanda.toolkit.frames import line_of_code, short_line, split_line

_COMMENT = re.compile(r"#.*\bamanda: allow\(([^)]*)\)")


class _Permit(NamedTuple):
    rule: str
    where: str  # "" everywhere

    def covers(self, rule: str, place: Place) -> bool:
        return rule == self.rule and (not self.where or _is_at(place, self.where))


class Allowed:
    """Permits such as "dead-units", "dead-units:encoder.0" and "dead-units:model.py:12".

    Raises:
        ValueError: there is no such rule.
    """

    def __init__(self, texts: Iterable[str], rules: Sequence[str]) -> None:
        self._permits = [_Permit(*_parts(text)) for text in texts]
        for permit in self._permits:
            check_name("allow", permit.rule, rules)

    def covers(self, rule: str, place: Place) -> bool:
        return any(permit.covers(rule, place) for permit in self._permits) or rule in _in_comment(place.source)


def check_name(option: str, name: str, rules: Sequence[str]) -> None:
    """Raises `ValueError`: no rule has this name."""
    if name not in rules:
        raise ValueError(f"[check] {option}= names no rule: {name!r}; known are {', '.join(rules)}")


def _parts(text: str) -> tuple[str, str]:
    rule, _, where = text.partition(":")
    return rule.strip(), where.strip()


def _is_at(place: Place, where: str) -> bool:
    module = place.module_path
    if module and (fnmatch.fnmatchcase(module, where) or module.startswith(f"{where}.")):
        return True
    if not place.source:
        return False
    lines = (place.source, line_of_code(place.source), short_line(place.source))
    return where in lines or where in [line.rpartition(":")[0] for line in lines]


def _in_comment(source: str) -> list[str]:
    """The rules that the comment in this line allows."""
    line = split_line(source)
    found = _COMMENT.search(linecache.getline(*line)) if line else None
    return [name.strip() for name in found[1].split(",")] if found else []
