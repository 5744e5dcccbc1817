"""HeadPruning: chosen heads of chosen layers of attention return zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from amanda import Error
from amanda.research.pruning.attention import AttentionPruning, Kept, Layer


class HeadPruning(AttentionPruning[Layer]):
    """Prunes heads of attention by a list for each layer::

        with amanda.apply(HeadPruning({0: [2, 5], 11: [0]})):
            fine_tune(model)

    P. Michel, O. Levy, G. Neubig: Are Sixteen Heads Really Better than One?, NeurIPS 2019. The output of a pruned head is
    zero, and so is its gradient. This equals removing the head's columns from the weight of the output projection. Layers
    count in each pass, from 0 on, so layers that share their weights (ALBERT) can lose different heads. See
    `AttentionPruning` for what is found. In rows all tokens are kept.

    Arguments:
        heads: of each layer, the heads to prune; both are numbers from 0 on. Layers that are not listed keep all heads.
        model, modules: as of `CascadePruning`.

    Raises:
        TypeError: `heads` is not a mapping, or `model` not a module.
        ValueError: a layer or a head is not a number from 0 on.
        amanda.Error: when a layer runs that has no such head; when the scope is left, if there was no such layer.
    """

    def __init__(
        self,
        heads: Mapping[int, Iterable[int]],
        *,
        model: torch.nn.Module | None = None,
        modules: str | Iterable[str] | None = None,
    ) -> None:
        if not isinstance(heads, Mapping):
            raise TypeError(f"[pruning] heads maps layers to the heads to prune, such as {{0: [2, 5]}}; got {heads!r}")
        for layer, of_layer in heads.items():
            if not isinstance(of_layer, Iterable):
                raise TypeError(f"[pruning] heads maps layers to lists of heads; write {{{layer}: [{of_layer!r}]}}")
        self.heads = {layer: tuple(of_layer) for layer, of_layer in heads.items()}
        for number in (*self.heads, *(head for of_layer in self.heads.values() for head in of_layer)):
            if not isinstance(number, int) or number < 0:
                raise ValueError(f"[pruning] layers and heads are numbers from 0 on, got {number!r}")
        super().__init__(Layer, max(self.heads, default=-1) + 1, model, modules)

    def after(self, state: Layer, output: torch.Tensor) -> Kept:
        batch, heads, tokens = output.shape[:3]
        pruned = self.heads.get(state.layer, ())
        beyond = [head for head in pruned if head >= heads]
        if beyond:
            raise Error(f"[pruning] layer {state.layer} has no head {beyond[0]}: its heads are 0 to {heads - 1}")
        kept = torch.tensor([head not in pruned for head in range(heads)], device=output.device) if pruned else None
        return Kept(kept, batch * tokens, batch * tokens)
