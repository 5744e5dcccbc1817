"""Evidence: what a tool looked at, and what ran that it was not shown or could not read."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from amanda.core import fork
from amanda.core.coverage.reasons import REASONS
from amanda.driver.protocol import CoverageCounter
from amanda.reports import notebook

MOST_NAMED = 3


@dataclasses.dataclass(frozen=True)
class Unseen:
    """Something that ran, and that a tool did not look at."""

    reason: str  # a word, for programs: "eager", "opaque", "distributed"
    count: int
    text: str  # "2 compiled functions ran eagerly, not compiled: loss (train.py:8), step (train.py:20)"


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The basis of a tool's statements: what the tool looked at, and what it did not. `Tool.evidence` returns it, as a
    snapshot.

    ``str(evidence)`` is a sentence: "412 operators and 388 backward operators; not looked at: ...".
    """

    tool: str
    operators: int  # forward operators that the tool looked at: places in the program
    backward_operators: int
    values: int | None  # tensors and arrays whose elements it read; None if it does not count them
    unseen: tuple[Unseen, ...]

    @property
    def is_complete(self) -> bool:
        """True if nothing is known to have run that the tool did not look at.

        Operators that its filters leave out do not count. The documentation's limitations list what a driver
        cannot see at all.
        """
        return not self.unseen

    @property
    def looked_at(self) -> str:
        """A text that says what the tool looked at: "12,431 results of 412 operators and 388 backward operators"."""
        values = "" if self.values is None else f"{counted(self.values, 'result')} of "
        backward = f" and {counted(self.backward_operators, 'backward operator')}" if self.backward_operators else ""
        return f"{values}{counted(self.operators, 'operator')}{backward}"

    @property
    def not_looked_at(self) -> str:
        """A text that says what ran and was not looked at; empty if nothing is known."""
        return "; ".join(one.text for one in self.unseen)

    def _repr_html_(self) -> str:
        missed = [f"not looked at: {one.text}" for one in self.unseen]
        return notebook.together(
            [notebook.text(f"{self.tool} looked at {self.looked_at}"), *map(notebook.text, missed)]
        )

    def __str__(self) -> str:
        return f"{self.looked_at}{f'; not looked at: {self.not_looked_at}' if self.unseen else ''}"


class UnseenLog:
    """A log of what ran in the scopes of one tool, on any thread, without being shown to the tool."""

    def __init__(self) -> None:
        self._lock = fork.lock()  # guards the fields below
        self._names: dict[str, dict[str, None]] = {}  # by reason, in order
        self._coverage: list[CoverageCounter] = []
        self._forgotten: collections.Counter[str] = collections.Counter()  # of what coverage has counted, by reason

    def note(self, reason: str, name: str) -> None:
        """`reason`: one of `FACTS`; `name`: which function or tool."""
        with self._lock:
            self._names.setdefault(reason, {})[name] = None

    def note_coverage(self, counters: Iterable[CoverageCounter]) -> None:
        """A scope with these counters was made."""
        with self._lock:
            self._coverage.extend(counters)

    def clear(self) -> None:
        """Forgets the facts that were noted and counted, except those of which a tool is notified only once."""
        with self._lock:
            self._names = {reason: names for reason, names in self._names.items() if reason in _TOLD_ONCE}
            skipped = self._skipped()
            self._forgotten = collections.Counter({why: skipped[why] for why in skipped if why not in _TOLD_ONCE})

    def found(self, *, with_taps: bool = False) -> list[Unseen]:
        """`with_taps`: compiled code whose operators taps have shown counts, too: it is not the code that the program runs
        alone."""
        with self._lock:
            names = {reason: list(known) for reason, known in self._names.items()}
            skipped = self._skipped() - self._forgotten
        facts = [fact(reason, names[reason]) for reason in FACTS if reason in names and (with_taps or reason != TAPS)]
        return facts + [
            Unseen(reason, skipped[reason], f"{counted(skipped[reason], 'call')}: {REASONS[reason]}")
            for reason in NOT_SHOWN
            if skipped[reason] and names.keys().isdisjoint((reason, *_NAMED.get(reason, ())))
        ]

    def _skipped(self) -> collections.Counter[str]:
        """Calls, by the reason why they were not shown. Call it with the lock held."""
        skipped: collections.Counter[str] = collections.Counter()
        for _, _, _, reasons in (row for counter in self._coverage for row in counter.rows()):
            skipped.update(reasons)
        return skipped


TAPS = "taps"
FACTS = {
    "eager": ("compiled function", "ran eagerly, in place of the compiled code"),
    "opaque": ("compiled function", "ran compiled, and none of its operators was shown"),
    TAPS: ("compiled function", "ran compiled with taps, which keep operators from being fused"),
    "refused": ("compiled function", "ran compiled without tools, which could not be put into it"),
    "hidden": ("kind of operator", "in compiled functions could not be shown"),
    "autograd": ("kind of backward pass", "shows no backward operators of eager code"),
    "unsupported": ("function", "ran without tools"),
    "stopped": ("tool", "failed, and was stopped"),
    "unhandled": ("operator", "ran as without the tool"),
    "uncounted": ("kind of operator", "ran uncounted, and may multiply"),
    "unevaluated": ("evaluation of an expression", "gave no value"),
}
"""The facts that drivers, scopes and tools note: the things that were not looked at, and why. In the order of texts."""

_TOLD_ONCE = ("unsupported", "stopped", "graph", "compiled")  # of a graph or a scope; others are noted in each run

_NAMED = {"compiled": ("hidden", "refused")}
"""By reason of coverage: the facts about the same operators."""

NOT_SHOWN = ("opaque", "off", "thread", "graph", "compiled", "callback", "lost")
"""The reasons of coverage for which a call that the program makes is not shown. Others are part of what is shown, are what
filters leave out, or are not the program's."""


def of_skips(counts: Mapping[str, int], reasons: Mapping[str, str]) -> list[Unseen]:
    """The values that a tool could not read, by reason; `reasons` describes each reason.

    Tensors on the meta device have no elements, and memory that no operator has written has no values: nothing was missed.
    """
    return [
        Unseen(reason, count, f"{counted(count, 'value')}: {reasons[reason]}")
        for reason, count in counts.items()
        if count and reason not in ("meta", "unwritten")
    ]


def of_left_out(count: int) -> list[Unseen]:
    """The operators of compiled functions that a tool in C++ leaves out: `count` is their number."""
    text = f"{counted(count, 'operator')} of compiled functions, where this tool can't work"
    return [Unseen("compiled", count, text)] if count else []


def counted(count: int, noun: str) -> str:
    """ "1 run", "12 runs", "3 values of a type"."""
    first, of, rest = noun.partition(" of ")
    return f"{count:,} {first}{'s' * (count != 1)}{of}{rest}"


def facts(reason: str, names: list[str]) -> list[Unseen]:
    """For `Tool._omissions`: the fact, if there are names."""
    return [fact(reason, names)] if names else []


def fact(reason: str, names: list[str]) -> Unseen:
    """`reason`: one of `FACTS`; `names`: of what it is true, each once."""
    noun, what = FACTS[reason]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return Unseen(reason, len(names), f"{counted(len(names), noun)} {what}: {', '.join(names[:MOST_NAMED])}{more}")
