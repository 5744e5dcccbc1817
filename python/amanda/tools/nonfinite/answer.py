"""The answer of NaNSentinel: what was found, or that nothing was, and in how much."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from amanda import Evidence
from amanda.toolkit.evidence import counted

from .finding import Finding
from .links import Link

_KINDS = {
    "produced": "produced some",
    "given": "got some that no operator seen here produced",
    "unread": "had some, and was given what no tool can read",
}


def answer_of(
    what: str,
    findings: Sequence[Finding],
    propagated: int,
    evidence: Evidence,
    *,
    masks: int = 0,
    infinities: Sequence[Link] = (),
    ended_well: bool = True,
) -> str:
    """`what`: "NaN", or "NaN or infinity"; `masks`: how many operators had some; `infinities`: what made some that do not
    count; `ended_well`: the program did."""
    if not findings:
        return f"{_nothing(what, evidence, ended_well)}{_uncounted(masks, infinities)}"
    kinds: collections.Counter[str] = collections.Counter(finding.kind for finding in findings)
    parts = [f"{counted(kinds[kind], 'operator')} {words}" for kind, words in _KINDS.items() if kinds[kind]]
    passed = f", and {counted(propagated, 'run')} of others passed it on" if propagated else ""
    origin = f"; the first: {findings[0].beginning}" if findings[0].beginning else ""
    missing = f"; not looked at: {evidence.not_looked_at}" if kinds["unread"] and not evidence.is_complete else ""
    return f"{what}: {', '.join(parts)}{passed}{origin}{missing}"


def _nothing(what: str, evidence: Evidence, ended_well: bool) -> str:
    """Says that nothing was found, in other words where something was not looked at."""
    until = "" if ended_well else " until the program failed"
    if evidence.is_complete:
        return f"no {what} was produced{until}, in {evidence.looked_at}"
    return f"no {what} was found{until} in {evidence.looked_at}; not looked at: {evidence.not_looked_at}"


def _uncounted(masks: int, infinities: Sequence[Link]) -> str:
    if masks:
        return f"; infinities of masks, which {counted(masks, 'operator')} wrote or passed on, do not count"
    if not infinities:
        return ""
    cause = f": {infinities[0].cause}" if infinities[0].cause else ""
    others = f" and {counted(len(infinities) - 1, 'other')}" if len(infinities) > 1 else ""
    return f"; infinities, which do not count, began in {infinities[0].place}{cause}{others}"
