"""Carriers: the operands of a run that have values which are not finite, and what the run made of them."""

from __future__ import annotations

from typing import NamedTuple

from .elements import Kinds
from .links import Trail

MOST_RECOMPUTED = 8  # runs of an operator that are computed again for their cause
NOBODY = "an input that no operator seen here produced"


class Carrier(NamedTuple):
    """An operand that has such values."""

    name: str
    kinds: Kinds
    elements: int
    trail: Trail | None  # None if no operator that was seen made them
    parameter: str
    memory: str  # see Finding
    is_parameter: bool

    @property
    def held(self) -> str:
        """A name for it, if no operator that was seen made its values."""
        named = f"parameter {self.parameter!r}" if self.parameter else ""
        return "" if self.trail is not None else ", ".join(filter(None, (named, self.memory))) or NOBODY

    @property
    def is_mask(self) -> bool:
        """True if its infinities were meant, or may have been: nobody else says who wrote them."""
        known = self.kinds == Kinds(negative=True) if self.trail is None else self.trail.is_mask
        return known and not self.is_parameter


class Step(NamedTuple):
    """A run whose results are not finite."""

    made: Kinds
    carriers: list[Carrier]
    trail: Trail

    @property
    def is_meant(self) -> bool:
        """True if it made or passed on a mask."""
        return self.trail.is_mask
