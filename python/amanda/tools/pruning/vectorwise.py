"""VectorwisePruning: two of every four weights are held at zero, the pattern that sparse tensor cores support."""

from __future__ import annotations

import itertools
from typing import Any

from amanda.toolkit.arrays import known

from .weight_pruning import WeightPruning


class VectorwisePruning(WeightPruning):
    """Prunes two of every four consecutive weights along the input channels, and keeps the largest ones::

        with amanda.apply(VectorwisePruning()):
            fine_tune(model)

    2:4 sparsity, pattern "m4n2_1d" of NVIDIA's APEX (apex/contrib/sparsity/sparse_masklib.py): of the six ways to keep
    two, it takes the one with the largest sum of magnitudes, and the first if there are several. A. Mishra et al.:
    Accelerating Sparse Deep Neural Networks, arXiv:2104.08378, 2021; A. Zhou et al.: Learning N:M Fine-grained
    Structured Sparse Neural Networks From Scratch, ICLR 2021. See `WeightPruning` for details and arguments.

    The weights of a group of four belong to one output, and in convolutions to one place of the kernel. If the number
    of channels is not divisible by four, the last group is padded with zeros: one or two remaining weights are all
    kept.
    """

    def get_mask(self, weight: Any, dim: int) -> Any:
        arrays = known(weight)
        xp = arrays.xp
        pairs = list(itertools.combinations(range(4), 2))
        patterns = arrays.like(weight, [float(i in pair) for pair in pairs for i in range(4)]).reshape(6, 4)
        magnitudes = xp.moveaxis(abs(weight), dim, -1)
        if magnitudes.dtype.itemsize < 4:
            magnitudes = arrays.cast(magnitudes, xp.float32)
        channels = magnitudes.shape[-1]
        zero = xp.zeros_like(magnitudes[..., :1])
        padded = xp.concatenate([magnitudes, *[zero] * (-channels % 4)], -1)
        fours = padded.reshape(*padded.shape[:-1], -1, 4)
        best = xp.stack([fours[..., i] + fours[..., j] for i, j in pairs], -1).argmax(-1)
        return xp.moveaxis(patterns[best].reshape(padded.shape)[..., :channels], -1, dim)
