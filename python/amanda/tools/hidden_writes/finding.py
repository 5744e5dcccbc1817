"""Findings: a tensor whose memory has changed, and whose version has not."""

from __future__ import annotations

import dataclasses
from typing import Literal

from amanda.toolkit import Place
from amanda.toolkit.frames import line_of_code

_CHANGES = {
    "outside": "it has changed since {since} it, and {version}: no operator wrote to it that this scope saw, so NumPy, a "
    "pointer, or a kernel outside of PyTorch did",
    "alias": "{since} it, {version}, and this operator wrote to its memory: through x.data, or another tensor that does "
    "not share the version",
    "undeclared": "the operator wrote to it, {version}, and the operator's schema says that it only reads it; name it in "
    "mutates_args",
    "replaced": "since {since} it, it was given other memory with other values, by x.data = ..., and {version}",
}


@dataclasses.dataclass(frozen=True)
class HiddenWrite:
    """A write that autograd does not know of: a backward operator that needs the old values computes with the new ones."""

    place: Place  #: the operator that met the change: the next one that read the tensor, or the one that wrote to it
    backward_op: str  #: the autograd node, if it is the backward operator of the one at `place`; else ""
    operand: str  #: the operator's name for the tensor: "input", "weight", "tensors[1]"
    how: Literal["outside", "alias", "undeclared", "replaced"]  #: see ``str()`` of the finding
    since: Place  #: the operator that had made the tensor, or read it last
    made_it: bool  #: it had made it
    shape: tuple[int, ...]
    parameter: str  #: the name of the parameter that it is, or ""
    version: int | None  #: the tensor's, before and after the write; None in inference mode, which has none

    def __str__(self) -> str:
        operator = f"{self.backward_op} of {_at(self.place)}" if self.backward_op else _at(self.place)
        parameter = f"parameter {self.parameter!r}, " if self.parameter else ""
        since = f"{_at(self.since)} {'made' if self.made_it else 'read'}"
        version = f"its version is still {self.version}" if self.version is not None else "it has no version"
        change = _CHANGES[self.how].format(since=since, version=version)
        return f"{operator}, {self.operand!r} ({parameter}shape {self.shape}): {change}"


def _at(place: Place) -> str:
    """ "aten::add_ in encoder (model.py:12)"."""
    module = f" in {place.module_path}" if place.module_path else ""
    return f"{place.name}{module}" + (f" ({line_of_code(place.source)})" if place.source else "")
