"""Ledger: what operators produced, and what they passed on."""

from __future__ import annotations

import collections
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from amanda.toolkit import Place, locks
from amanda.toolkit.frames import line_in_cell
from amanda.toolkit.schemas import Sides

from .finding import Finding, Operand
from .links import Trail

Named = list[tuple[str, Any]]

MOST_PENDING = 4096  # flags on devices that are kept before they are read


class At(NamedTuple):
    """An operator, forward or backward."""

    place: Place
    backward_op: str
    sides: Sides | None  # None in backward
    allowed: bool
    op: Any = None  # computes it again; None in backward

    @property
    def key(self) -> tuple[Place, str]:
        """The same for all runs."""
        return self.place, self.backward_op

    def __str__(self) -> str:
        name, backward = self.place.name, self.backward_op
        return (
            f"{backward} of {name} ({line_in_cell(self.place.source)}), backward"
            if backward
            else f"{name} ({line_in_cell(self.place.source)}), forward"
        )


class Run(NamedTuple):
    """The operands of one run of an operator, while they are there."""

    at: At
    outputs: Named
    inputs: Named  # with what the forward operator saved
    constants: Container[str]  # the inputs that the program wrote as numbers
    packed: Sequence[str]  # see Sighting
    unused: Container[str] = ()  # the inputs that it does not read

    @property
    def read(self) -> Named:
        return [(name, value) for name, value in self.used if name not in self.constants]

    @property
    def used(self) -> Named:
        return [(name, value) for name, value in self.inputs if name not in self.unused]


def unused(inputs: Named) -> tuple[str, ...]:
    """The inputs that an operator does not read: `addmm`, `baddbmm` and the like leave `self` out if `beta` is 0."""
    given = dict(inputs) if any(name == "input alpha" for name, _ in inputs) else {}
    return ("input self",) if "input beta" in given and given["input beta"] == 0 else ()


class Sighting(NamedTuple):
    """A run, and flags that are still where its tensors are."""

    at: At
    output: Any  # a bool on the device: true if there is a NaN
    given: Any  # true if an input has one
    outputs: tuple[Operand, ...]
    inputs: tuple[Operand, ...]
    parameter: str
    memory: str = ""  # a description of memory that has no values, and held it
    cause: Callable[[], str] | None = None  # to be called now: it holds tensors
    infinity: str = ""  # see Finding
    unread: str = ""  # see Finding
    follows: Any = False  # a flag, too; true if what could not be read was made from a value that is not finite
    packed: Sequence[str] = ()  # what hooks of the program keep; all of it was read when operators made it, or took it
    gradient: str = ""  # see Finding
    trail: Trail = Trail()
    mask: str = ""  # see Finding

    @property
    def is_apart(self) -> bool:
        """True if it is known to come from none of the findings: from a mask, or from infinities that were none, which
        autograd has added up maybe."""
        links = self.trail.links
        return bool(self.mask or (links and not links[0].held and self.trail.found is None))


class Ledger:
    """Sightings become findings, each operator's first one since `begin`, or are counted. On any thread."""

    def __init__(self) -> None:
        self._lock = locks.lock()  # guards the fields below
        self._findings: dict[tuple[Place, str], Finding] = {}  # the first of each operator
        self._told: set[tuple[Place, str]] = set()  # those of which `add` has returned one since `begin`
        self._runs: collections.Counter[tuple[Place, str]] = collections.Counter()
        self._propagated = 0
        self._seen = False  # any that is not finite, allowed or not
        self._pending: list[Sighting] = []

    def findings(self) -> list[Finding]:
        with self._lock:
            return list(self._findings.values())

    def runs(self, finding: Finding) -> int:
        with self._lock:
            return next((self._runs[key] for key, found in self._findings.items() if found == finding), 0)

    @staticmethod
    def key_of(finding: Finding) -> tuple[Place, str]:
        """The key of its operator; see `At`."""
        return Place(finding.op_id, finding.name, finding.module_path, finding.source), finding.backward_op

    @property
    def propagated(self) -> int:
        with self._lock:
            return self._propagated

    def begin(self) -> None:
        """Earlier findings count as new again."""
        with self._lock:
            self._told.clear()
            self._seen = False

    def clear(self) -> None:
        with self._lock:
            self._findings.clear()
            self._told.clear()
            self._runs.clear()
            self._pending.clear()
            self._propagated, self._seen = 0, False

    def defer(self, sighting: Sighting) -> Finding | None:
        """Keeps it until `drain`, or until there are many. The first new finding then."""
        with self._lock:
            self._pending.append(sighting)
            is_full = len(self._pending) >= MOST_PENDING
        return self.drain() if is_full else None

    def drain(self) -> Finding | None:
        """Reads the flags that are still on devices. The first new finding, if there is one."""
        with self._lock:
            pending, self._pending = self._pending, []
        if not pending:
            return None
        from . import tensors

        flags = iter(tensors.all_flags([flag for one in pending for flag in (one.output, one.given, one.follows)]))
        first = None
        for one in pending:
            output, given, follows = next(flags), next(flags), next(flags)
            if output:
                first = first or self.add(one._replace(follows=follows), given)
        return first

    def add(self, one: Sighting, given: bool) -> Finding | None:
        """Counts it. The finding, if it is new. `given`: an input was not finite."""
        key = one.at.key
        with self._lock:
            seen, self._seen = self._seen, True
            if one.at.allowed:
                return None
            if seen and ((given and not one.is_apart) or (one.unread and one.follows)):
                self._propagated += not one.gradient
                return None
            self._runs[key] += 1
            if key in self._told:
                return None
            self._told.add(key)
            unread = one.unread or (_packed(one.packed) if seen else "")
            finding = Finding(
                kind="given" if given else "unread" if unread else "produced",
                phase="backward" if one.at.backward_op else "forward",
                backward_op=one.at.backward_op,
                parameter=one.parameter if given else "",
                memory=one.memory if given else "",
                cause=one.cause() if one.cause is not None and not (given or unread) else "",
                outputs=one.outputs,
                inputs=one.inputs,
                infinity="" if given else one.infinity,
                unread="" if given else unread,
                gradient=one.gradient,
                chain=one.trail.links,
                left_out=one.trail.left_out,
                mask=one.mask,
                **one.at.place._asdict(),
            )
            self._findings.setdefault(key, finding)
        return finding


def _packed(names: Sequence[str]) -> str:
    return " or ".join(f"{name}, which could not be read (hooks of the program keep it)" for name in names)
