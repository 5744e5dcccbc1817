"""Attention weights of `scaled_dot_product_attention`, which does not return them."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ATTENTION = "scaled_dot_product_attention"
WEIGHTS = "attention_weights"  # the second part of their names


@dataclasses.dataclass(frozen=True)
class AttentionWeights:
    """The weights of one execution, which are computed when they are read: they may take more memory than the operands.

    They are ``softmax(query @ key.transpose(-2, -1) * scale + mask)``, as PyTorch documents the operator, before dropout.
    A row whose keys are all masked has zeros.
    """

    query: torch.Tensor  # [..., heads, queries, size]
    key: torch.Tensor  # [..., heads, keys, size]; with grouped queries, fewer heads
    mask: torch.Tensor | None  # of booleans: True where a query attends; else it is added
    is_causal: bool
    scale: float
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.query.shape[:-1], self.key.shape[-2])

    @property
    def device(self) -> torch.device:
        return self.query.device

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept."""
        return sum(each.nbytes for each in (self.query, self.key, self.mask) if each is not None)

    def computed(self) -> torch.Tensor:
        import torch

        from amanda import disabled

        with disabled(), torch.no_grad():
            key = self.key
            if self.query.dim() > 2 and key.shape[-3] != self.query.shape[-3]:
                key = key.repeat_interleave(self.query.shape[-3] // key.shape[-3], -3)
            scores = (self.query @ key.transpose(-2, -1) * self.scale).float()
            mask = self.mask
            if self.is_causal:
                mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
            masked = scores.isneginf().all(-1, keepdim=True)
            return scores.softmax(-1).masked_fill(masked, 0.0).to(self.dtype)


def computed(value: Any) -> Any:
    """Attention weights, computed; another value as it is."""
    return value.computed() if isinstance(value, AttentionWeights) else value
