"""Options of a CompiledDiff."""

from __future__ import annotations

from typing import NamedTuple


class Options(NamedTuple):
    """See `CompiledDiff`."""

    backward: bool
    only_nonfinite: bool
    seconds: float
