"""Parameter: one that an operator computes with."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple


class Parameter(NamedTuple):
    """It keeps the parameter not alive. One of which an operator uses a part, such as one expert, counts as a whole."""

    key: Hashable  # equal for the same parameter
    name: str  # in its model
    elements: int
