"""Findings: what a rule has found, and where."""

from __future__ import annotations

import dataclasses

from amanda.toolkit import Place
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
        module = f" in {self.place.module_path}" if self.place.module_path else ""
        line = f" ({line_of_code(self.place.source)})" if self.place.source else ""
        return (
            f"{self.rule}: {self.place.name}{module}{line}, {counted(self.count, 'time')}\n"
            f"  {self.sentence}: {self.evidence}\n"
            f"  fix: {self.fix}"
        )
