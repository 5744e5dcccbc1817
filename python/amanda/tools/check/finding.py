"""Findings: what a rule has found, and where."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

from amanda.toolkit import Place
from amanda.toolkit.answers import folded, pattern_of
from amanda.toolkit.evidence import counted
from amanda.toolkit.frames import line_of_code


@dataclasses.dataclass(frozen=True)
class Finding:
    """A place of the program that breaks a rule."""

    rule: str  #: its name
    sentence: str  #: what the rule says
    place: Place  #: the operator, or the step of an optimizer; its source is the line
    evidence: str  #: what was seen there
    fix: str
    count: int  #: how often it was seen

    def __str__(self) -> str:
        return _text([self])


def texts(findings: Iterable[Finding]) -> list[str]:
    """Findings as text: together those of a line that differ in nothing but the number of a layer."""
    groups: dict[Hashable, list[Finding]] = {}
    for one in findings:
        place = one.place._replace(op_id=None, module_path=pattern_of(one.place.module_path))
        groups.setdefault((one.rule, place, one.evidence), []).append(one)
    return list(map(_text, groups.values()))


def _text(group: Sequence[Finding]) -> str:
    one, modules = group[0], folded(finding.place.module_path for finding in group)
    module = f" in {modules}" if modules else ""
    line = f" ({line_of_code(one.place.source)})" if one.place.source else ""
    places = f", {counted(len(group), 'place')}" if len(group) > 1 else ""
    return (
        f"{one.rule}: {one.place.name}{module}{line}{places}, {counted(sum(each.count for each in group), 'time')}\n"
        f"  {one.sentence}: {one.evidence}\n"
        f"  fix: {one.fix}"
    )
