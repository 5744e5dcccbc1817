"""Operators whose weights are pruned, or are left dense."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from amanda.toolkit import Place, PlaceRow


@dataclasses.dataclass(frozen=True)
class Row(PlaceRow):
    """The newest mask of one operator; or those of all operators of a type, a module or a line."""

    weights: int
    pruned: int  # those held at zero

    @property
    def sparsity(self) -> float:
        """The fraction of weights that are pruned, 0 to 1."""
        return self.pruned / self.weights if self.weights else 0.0


Version = tuple[int, float]
"""The values on which masks depend in addition to the weights: the number of the tool's resets, and its sparsity."""


@dataclasses.dataclass(eq=False)
class Masked:
    """An operator with a mask, in one scope."""

    place: Place
    dim: int  # over which it sums
    groups: int  # of a convolution
    weight: Any  # ParameterView, in graphs GraphWeight; None if it is computed, or no parameter
    mask: Any = None  # of the weight's kind; None if not made yet
    version: Version = (0, 0.0)  # when the mask was made
    runs: int = -1  # the tool's reset after which it last ran
    like: Masked | None = None  # the operator that makes the mask, if it has the same weight
    others: dict[object, Masked] = dataclasses.field(default_factory=dict)  # of other parts of its parameter, by key

    @property
    def id(self) -> object:
        """The id of the operator with this weight. An operator on parts of a parameter, such as experts, has
        several."""
        is_part = self.weight is not None and self.weight.is_part
        return (self.place.op_id, self.key) if is_part else self.place.op_id

    def with_part(self, weight: Any) -> Masked:
        """The operator with the weight that it has now: a loop over experts is one place."""
        if self.weight is None or not self.weight.is_part:
            return self
        view = self.weight.moved_to(weight)
        if view is None:
            return self
        return self.others.setdefault(view.key, Masked(self.place, self.dim, self.groups, view))

    @property
    def key(self) -> object:
        """Equal for operators with the same weight; None if it is computed, or no parameter."""
        return None if self.weight is None else self.weight.key

    def current_weight(self) -> Any:
        """The weight as it is now. None if it is computed, no parameter, or no longer exists."""
        return None if self.weight is None else self.weight.current()

    def row(self) -> Row:
        assert self.mask is not None
        size = math.prod(self.mask.shape)
        return Row(*self.place, weights=size, pruned=size - int((self.mask != 0).sum()))


@dataclasses.dataclass(frozen=True)
class Use:
    """An operator with its weight."""

    place: Place
    weight: Any  # as of Masked
    mask: Any  # None if the operator runs dense
