"""VectorwisePruning: two of every four weights are held at zero, the pattern that sparse tensor cores support."""

from __future__ import annotations

import itertools

import torch

from amanda.tools.pruning.weight_pruning import WeightPruning


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

    def get_mask(self, weight: torch.Tensor, dim: int) -> torch.Tensor:
        pairs = torch.tensor(list(itertools.combinations(range(4), 2)), device=weight.device)
        patterns = torch.zeros(6, 4, dtype=weight.dtype, device=weight.device).scatter(1, pairs, 1)
        channels = weight.shape[dim]
        magnitudes = weight.abs().movedim(dim, -1).to(torch.promote_types(weight.dtype, torch.float32))
        fours = torch.nn.functional.pad(magnitudes, (0, -channels % 4)).unflatten(-1, (-1, 4))
        best = fours[..., pairs].sum(-1).argmax(-1)
        return patterns[best].flatten(-2)[..., :channels].movedim(-1, dim)
