"""Report: the findings of all rules, without those that the user allows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from amanda.toolkit import Place, Skips, lock

from .allowed import Allowed
from .finding import Finding

if TYPE_CHECKING:
    from .rule import Rule


class Report:
    """Collects findings, of any thread."""

    def __init__(self, allowed: Allowed, skips: Skips) -> None:
        self._allowed = allowed
        self.skips = skips  #: what rules could not read
        self._lock = lock()  # guards the next two
        self._found: dict[tuple[str, Place, str], Finding] = {}
        self._left_out: set[tuple[str, Place, str]] = set()

    def add(self, rule: Rule, place: Place, evidence: str, count: int, key: str) -> None:
        with self._lock:
            known = rule.name, place, key
            if known in self._found:
                before = self._found[known]
                self._found[known] = dataclasses.replace(before, count=before.count + count)
            elif known in self._left_out or self._allowed.covers(rule.name, place):
                self._left_out.add(known)
            else:
                self._found[known] = Finding(rule.name, rule.sentence, place, evidence, rule.fix, count)

    def findings(self) -> list[Finding]:
        with self._lock:
            return list(self._found.values())

    @property
    def allowed(self) -> int:
        """The number of findings that the user allows."""
        with self._lock:
            return len(self._left_out)

    def clear(self) -> None:
        with self._lock:
            self._found.clear()
            self._left_out.clear()
