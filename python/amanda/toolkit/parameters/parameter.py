"""Parameter: one that an operator computes with."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple


class Parameter(NamedTuple):
    """It keeps the parameter not alive. One of which an operator uses a part, such as one expert, counts as a whole."""

    key: Hashable  # equal for the same parameter
    name: str  # in its model
    elements: int
    is_vector: bool = False  # a bias or a scale: it has less than two dimensions


def in_parametrization(module_path: str) -> bool:
    """True for modules of `torch.nn.utils.parametrize`, which compute a weight."""
    return ".parametrizations." in f".{module_path}"
