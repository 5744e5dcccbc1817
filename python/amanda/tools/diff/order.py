"""Order: the elements of a result, in their order and with their signs, in a few numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import values

_PARTS = 64
MOST = 1 << 24  # elements


class Order(NamedTuple):
    """Sums over parts of the elements, each times a weight that depends on its position. One of fewer elements than parts
    has them all."""

    length: int
    sums: Any
    sizes: Any  # sums of sizes

    def is_like(self, other: Order, rtol: float) -> bool:
        """Another shape is none of its business."""
        if self.length != other.length:
            return False
        sizes = np.maximum(self.sizes, other.sizes)
        with np.errstate(invalid="ignore"):  # of infinities
            close = np.abs(self.sums - other.sums) <= rtol * (sizes + sizes.mean())
        same = (self.sums == other.sums) | (np.isnan(self.sums) & np.isnan(other.sums))
        return bool((same | (close & np.isfinite(sizes))).all())


def order_of(array: Any) -> Order | None:
    """None if it has one element or none, or too many."""
    elements = None if array is None else values.elements(array)
    if elements is None or not 1 < len(elements) <= MOST:
        return None
    count = len(elements)
    starts = np.unique(np.arange(_PARTS) * count // _PARTS)
    with np.errstate(invalid="ignore", over="ignore"):
        weighted = elements * np.random.default_rng(0).uniform(1, 2, count)
        return Order(count, np.add.reduceat(weighted, starts), np.add.reduceat(np.abs(weighted), starts))
