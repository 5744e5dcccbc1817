"""Cuts: where the path of a parameter to the loss ends, and why. Findings: the parameters that have the same ones."""

from __future__ import annotations

import dataclasses
from typing import Literal

from amanda.toolkit import Place
from amanda.toolkit.answers import folded
from amanda.toolkit.frames import line_of_code

Verdict = Literal["none", "zero", "not updated", "partial", "ok", "refused"]
MOST_CUTS = 3  # that a text has


@dataclasses.dataclass(frozen=True)
class Cut:
    """The end of a path from a parameter to a loss."""

    reason: str  #: a key of `amanda.tools.cuts.reasons.REASONS`: "detach", "no_grad"
    text: str  #: the same in words
    last: Place | None  #: the last operator whose result depends on the parameter by autograd; None if there is none
    end: Place | None  #: the first operator at which the path ends; None if there is none
    is_meant: bool = False  #: it ends by itself, as that of a factor that starts at zero does

    def __str__(self) -> str:
        if self.end is None:
            return self.text
        after = f", after {at(self.last)}" if self.last is not None and self.last != self.end else ""
        return f"{_VERBS.get(self.reason, 'cut at')} {at(self.end)}{after}: {self.text}"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Parameters that get no gradient, a gradient that is zero, or no update, for one reason."""

    verdict: Verdict
    parameters: tuple[str, ...]
    cuts: tuple[Cut, ...]  #: a parameter that several operators use may have several
    passes: int  #: the backward passes in which they could have got one
    has_weights: bool = True  #: one of them has two dimensions or more

    def __str__(self) -> str:
        head = f"{_HEADS[self.verdict]}: {named(self.parameters)}"
        more = len(self.cuts) - MOST_CUTS
        return "\n  ".join([head, *map(str, self.cuts[:MOST_CUTS]), *([f"and {more} more ends"] if more > 0 else [])])


_HEADS = {"none": "no gradient", "zero": "a gradient of zero", "not updated": "a gradient, but no update"}
_HEADS["refused"] = "no gradient in the pass that PyTorch refused"
_VERBS = {
    **dict.fromkeys(("outside the loss", "item"), "used last at"),
    **dict.fromkeys(("zero derivative", "overwritten", "factor", "starts at zero", "masked"), "made zero at"),
    **dict.fromkeys(("saturated", "saved output", "backward"), "made zero at"),
}
"""By reason, where it is not cut."""


def named(parameters: tuple[str, ...]) -> str:
    """Parameters in few words: "enc.weight, enc.bias"; many with layers as one, and their number."""
    if len(parameters) <= MOST_CUTS:
        return ", ".join(parameters)
    return f"{folded(parameters)} ({len(parameters)} parameters)"


def at(place: Place) -> str:
    """ "aten::add_ in encoder (model.py:12)"."""
    module = f" in {place.module_path}" if place.module_path else ""
    return f"{place.name}{module}" + (f" ({line_of_code(place.source)})" if place.source else "")
