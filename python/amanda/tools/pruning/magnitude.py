"""MagnitudePruning: the smallest weights of each operator are held at zero."""

from __future__ import annotations

import math
from typing import Any

from amanda.toolkit.arrays import known

from .sparsity_schedule import SparsitySchedule, now
from .weight_pruning import WeightPruning


class MagnitudePruning(WeightPruning):
    """Prunes the weights of smallest magnitude, a fraction of each operator's weight::

        with amanda.apply(MagnitudePruning(sparsity=0.9)):
            fine_tune(model)

    The rule is that of S. Han, J. Pool, J. Tran, W. Dally: Learning both Weights and Connections for Efficient Neural
    Networks, NIPS 2015, and the masks are those of `torch.nn.utils.prune.l1_unstructured`. See
    `WeightPruning` for when masks are made, what is pruned, and further arguments.

    Arguments:
        sparsity: the fraction of weights to prune, 0 to 1, or a `SparsitySchedule`. Their number is rounded half to even.

    Raises:
        ValueError: `sparsity` is not in that range.
    """

    def __init__(self, sparsity: float | SparsitySchedule = 0.5, **options: Any) -> None:
        super().__init__(**options)
        self._take(sparsity)

    def get_mask(self, weight: Any, dim: int) -> Any:
        count = round(now(self.sparsity) * math.prod(weight.shape))
        return known(weight).without_smallest(abs(weight), count)
