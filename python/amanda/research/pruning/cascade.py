"""CascadePruning: tokens and heads that matter least are left out of all later layers of attention."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import torch

from amanda import Error
from amanda.research.pruning.attention import AttentionPruning, Kept, Layer

MASKED = -1000.0
"""Scores below this one are those of masked keys: masks are -10000 or less, and the exponential is 0."""


@dataclasses.dataclass
class _Cascade(Layer):
    """The tokens and heads that a pass has pruned, and their importance."""

    real: torch.Tensor | None = None  # (batch, tokens): not padding
    tokens: torch.Tensor | None = None  # (batch, tokens): those that the layer attends to
    attended: torch.Tensor | None = None  # (batch, tokens): the importance of tokens, this layer's share included
    heads: torch.Tensor | None = None  # (batch, heads): those that stay; None if all do
    magnitudes: torch.Tensor | int = 0  # (batch, heads): the importance of heads


class CascadePruning(AttentionPruning[_Cascade]):
    """Cascade token and head pruning, SpAtten: all later layers leave out the least important tokens and heads so far::

        pruning = CascadePruning(tokens=[1, 1, 0.8, 0.6, 0.4], heads=0.75)
        with amanda.apply(pruning):
            model(**batch)
        print(pruning.table())

    H. Wang, Z. Zhang, S. Han: SpAtten: Efficient Sparse Attention Architecture with Cascade Token and Head Pruning, HPCA
    2021 (arXiv:2012.09852). Each sample of a batch has its own tokens and heads:

    - A token's importance is the sum of the attention probabilities that it gets as a key, over heads, queries and the
      layers so far. After layer i the ``ceil(tokens[i] * n)`` most important ones of n tokens stay.
    - A head's importance is the sum of the magnitudes of its output, over tokens, features and the layers so far. After
      layer i the ``ceil(heads[i] * h)`` most important ones of h heads stay.

    Pruned tokens and heads stay pruned, and add to no importance. Among equal ones, the first stays. Probabilities are
    those before dropout, computed in float32 or float64.

    Nothing gets smaller, as the program runs its own operators: a pruned token is masked as a key, so its
    probability is 0, and a pruned head returns 0. For tokens that stay this equals removing the others. The rows of pruned
    tokens are still computed. A program that averages over tokens should do so over `kept_tokens`.

    Padding is found by a token's score for itself: masked, below -1000. It is not counted in n and never attended to.
    Under a causal mask the first tokens get the most attention. Models with several sets of tokens, such as encoders with
    decoders, need `modules`. A cache of earlier keys is an error.

    Arguments:
        tokens: the share of a sample's tokens that stays after each layer, in (0, 1]: one for all layers, or a sequence
            with one for each, whose last one holds for the others.
        heads: the same for heads.
        model: the module of which one call is one pass. By default, the outermost one. Name it if a program calls a
            model twice inside another module, as siamese networks do.
        modules: paths of the modules whose attention is pruned, as in `Tool.add_inst_for_op`. By default, all.

    Raises:
        TypeError: `model` is not a module.
        ValueError: a share is not in (0, 1].
        amanda.Error: attention runs whose queries are not its keys, or with other tokens than before in the pass; or
            the scope ends with more shares than layers.
    """

    def __init__(
        self,
        tokens: float | Sequence[float] = 1.0,
        heads: float | Sequence[float] = 1.0,
        *,
        model: torch.nn.Module | None = None,
        modules: str | Iterable[str] | None = None,
    ) -> None:
        self.tokens, self.heads = _shares("tokens", tokens), _shares("heads", heads)
        super().__init__(_Cascade, max(len(self.tokens), len(self.heads)), model, modules)

    @property
    def kept_tokens(self) -> torch.Tensor:
        """The tokens that stay after the last layer of this thread's last pass: True in (batch, tokens).

        Raises:
            amanda.Error: no attention has run yet.
        """
        tokens = self._passes.last.tokens
        if tokens is None:
            raise Error("[pruning] kept_tokens is of the last pass, and no attention has run in one on this thread")
        return tokens

    def before(self, state: _Cascade, scores: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        assert state.awaits is not None
        batch, _, queries, keys = state.awaits
        if queries != keys:  # `after` finds out whether this is attention
            return None
        values = scores()
        if state.tokens is None or state.attended is None:
            state.real = (values.diagonal(dim1=-2, dim2=-1) > MASKED).any(1)
            state.tokens, state.attended = state.real, torch.zeros_like(values[:, 0, 0])
        if state.tokens.shape != (batch, keys):
            raise Error(
                f"[pruning] attention over {keys} tokens of {batch} samples follows one over {state.tokens.shape[1]} of "
                f"{len(state.tokens)} in the same pass; choose one kind by modules="
            )
        pruned = any(_share(self.tokens, layer) < 1 for layer in range(state.layer))
        if pruned:
            values = values.masked_fill(~state.tokens[:, None, None, :], -torch.inf)
        probabilities = values.softmax(-1).masked_fill(~state.tokens[:, None, :, None], 0)
        if state.heads is not None:
            probabilities = probabilities.masked_fill(~state.heads[:, :, None, None], 0)
        state.attended = state.attended + probabilities.sum((1, 2))
        return state.tokens if pruned else None

    def after(self, state: _Cascade, output: torch.Tensor) -> Kept:
        assert state.awaits is not None
        *_, heads, queries, keys = state.awaits
        if queries != keys:
            raise Error(
                f"[pruning] {queries} queries attend to {keys} keys; cascade pruning is for self-attention over all "
                "tokens: pass use_cache=False, or modules= to leave out attention to another sequence"
            )
        assert state.real is not None
        assert state.tokens is not None
        assert state.attended is not None
        kept = Kept(state.heads, state.real.sum(), state.tokens.sum())
        magnitude = output.abs().to(state.attended.dtype).masked_fill(~state.tokens[:, None, :, None], 0)
        state.magnitudes = state.magnitudes + magnitude.sum((2, 3))
        if (share := _share(self.heads, state.layer)) < 1:
            candidates = torch.ones_like(magnitude[..., 0, 0], dtype=torch.bool) if state.heads is None else state.heads
            state.heads = _top(state.magnitudes, candidates, math.ceil(share * heads))
        count = (_share(self.tokens, state.layer) * state.real.sum(1, keepdim=True).double()).ceil()
        state.tokens = _top(state.attended, state.tokens, count)
        return kept


def _top(importance: torch.Tensor, candidates: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """The `count` most important candidates of each row."""
    order = importance.masked_fill(~candidates, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    return candidates & (order.argsort(-1) < count)


def _shares(what: str, shares: float | Sequence[float]) -> tuple[float, ...]:
    found: tuple[float, ...] = tuple(shares) if isinstance(shares, Sequence) else (shares,)
    if not found or not all(isinstance(share, (int, float)) and 0 < share <= 1 for share in found):
        raise ValueError(
            f"[pruning] {what} is the share of {what} that stays, above 0 and up to 1, or one for each layer; "
            f"got {shares!r}"
        )
    return found


def _share(shares: tuple[float, ...], layer: int) -> float:
    return shares[min(layer, len(shares) - 1)]
