"""AttentionPruning: finds attention in any model, layer by layer. A subclass prunes its tokens and heads."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Literal, NamedTuple, TypeVar

import torch

from amanda import Error, OpContext, Tool
from amanda.research.pruning.passes import UNSEEN, Passes
from amanda.toolkit import Place, Skips, TellsSkips, eager_only, fused_layers, locks, warn_here
from amanda.toolkit.arrays import of_torch
from amanda.toolkit.tables import Column, Grouping, Results, fields_of, name_column, number_column

LayerBy = Literal["layer"]


@dataclasses.dataclass(frozen=True)
class LayerRow:
    """The tokens and heads that one layer of attention kept. All numbers are sums over the samples of all passes."""

    layer: int  # the number of the attention operator in a pass, from 0 on
    name: str  # "aten::scaled_dot_product_attention", or "aten::matmul" where attention is written out
    module_path: str
    source: str  # file:line of the call
    samples: int
    tokens: int  # without padding
    tokens_kept: int  # those that the layer attends to
    heads: int
    heads_kept: int


@dataclasses.dataclass
class Layer:
    """The position of a pass: the attention operator that runs, or will run next."""

    layer: int = 0
    awaits: torch.Size | None = None  # the shape of the probabilities, until they met the values


class Kept(NamedTuple):
    """The heads and tokens that a layer keeps."""

    heads: torch.Tensor | None  # True for those that stay, (batch, heads) or (heads,); None if all do
    tokens: torch.Tensor | int  # their number in the batch, without padding
    tokens_kept: torch.Tensor | int


LayerT = TypeVar("LayerT", bound=Layer)


class AttentionPruning(TellsSkips, Results[LayerRow, LayerBy], Tool, Generic[LayerT]):
    """Base class of tools that prune attention. A subclass decides in `before` and `after`.

    Attention is `scaled_dot_product_attention`, or a `softmax` over the last dimension of four, (batch, heads, queries,
    keys), and the next `matmul` with an operand that has the shape of its result. Each of these is one layer. Layers
    count from 0 on in each pass of the model, so a layer that a model shares (ALBERT) is a new one each time it runs. A
    pass is one call of the outermost module, or of `model`. A recomputation by checkpointing is the same layer again.

    Attention over other shapes is not found; a scope that saw no attention warns (`amanda.UnmatchedFilterWarning`).

    Rows are by "layer". See `Results` for `rows`, `table`, `to_pandas` and `reset`.
    """

    needs_eager = UNSEEN
    _speaker = "pruning"
    _groupings = {
        "layer": Grouping(
            [
                name_column("id"),
                number_column("layer", "layer"),
                number_column("tokens", "tokens"),
                number_column("kept", "tokens_kept"),
                number_column("heads", "heads"),
                Column("kept", lambda row: str(row.heads_kept), field="heads_kept"),
                number_column("samples", "samples"),
            ],
            fields_of(LayerRow),
        )
    }

    def __init__(
        self,
        make: Callable[[], LayerT],
        layers: int,
        model: torch.nn.Module | None,
        modules: str | Iterable[str] | None,
    ) -> None:
        super().__init__()
        self._passes: Passes[LayerT] = Passes(make, model)
        self._layers_named = layers  # by the options
        self._layers_seen = 0  # the most in a pass since the scope was entered
        self._looked = False  # at something that might have been attention
        self._skips = Skips(self._speaker)
        self._sums: dict[tuple[int, Place], list[torch.Tensor | int]] = {}
        self._lock = locks.lock()  # guards the sums
        paths = modules if modules is None or isinstance(modules, str) else list(modules)
        self.add_inst_for_op(self._analyze_fused, ops="scaled_dot_product_attention", modules=paths, optional=True)
        self.add_inst_for_op(self._analyze_softmax, ops="softmax", modules=paths, optional=True)
        self.add_inst_for_op(self._analyze_product, ops="matmul", modules=paths, optional=True)
        fused_layers.refuse_in(self)

    def before(self, state: LayerT, scores: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        """Called before a layer attends. Returns the keys to attend to, True in (batch, keys), or None for all.

        Arguments:
            state: the state of the pass.
            scores: computes the input of the softmax, (batch, heads, queries, keys), in float32 at least.
        """
        return None

    def after(self, state: LayerT, output: torch.Tensor) -> Kept:
        """Called after a layer has attended.

        Arguments:
            state: the state of the pass.
            output: the result of the heads, (batch, heads, queries, features).

        Raises:
            NotImplementedError: the subclass does not define it.
        """
        raise NotImplementedError(f"[pruning] {type(self).__name__} has no after")

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._sums.clear()
        self._skips.reset()

    def on_enter(self) -> None:
        self._layers_seen, self._looked = 0, False
        self._passes.open()

    def on_exit(self, error: BaseException | None) -> None:
        self._passes.close()
        if error is not None or not self._looked:
            return
        if not self._layers_seen:
            warn_here(
                f"[pruning] tool '{self.name}' found no attention: no scaled_dot_product_attention, and no softmax over "
                "the last of four dimensions (batch, heads, queries, keys) followed by matmul; "
                "nn.MultiheadAttention runs the former with need_weights=False"
            )
        elif self._layers_seen < self._layers_named:
            raise Error(
                f"[pruning] layer {self._layers_named - 1} of tool '{self.name}' never ran: the passes had "
                f"{self._layers_seen} layers of attention, 0 to {self._layers_seen - 1}"
            )

    def _rows(self, by: LayerBy) -> list[LayerRow]:
        with self._lock:
            return [
                LayerRow(layer, place.name, place.module_path, place.source, *map(int, sums))
                for (layer, place), sums in sorted(self._sums.items())
            ]

    def _analyze_fused(self, context: OpContext) -> None:
        eager_only.check(context, self.needs_eager)
        inputs = ["query", "key", "attn_mask", "is_causal", "scale"]
        context.insert_before_op(self._before_fused, inputs, differentiable=True)
        context.insert_after_op(self._after, differentiable=True, place=_place(context))

    def _analyze_softmax(self, context: OpContext) -> None:
        eager_only.check(context, self.needs_eager)
        context.insert_before_op(self._before_softmax, ["self", "dim"], differentiable=True)

    def _analyze_product(self, context: OpContext) -> None:
        eager_only.check(context, self.needs_eager)
        context.insert_after_op(self._after, inputs=[0, 1], differentiable=True, place=_place(context))

    def _before_fused(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
        scale: float | None,
    ) -> tuple[torch.Tensor | bool | None, ...] | None:
        self._looked = True
        if query.dim() != 4 or self._skips.unreadable(query):
            return None
        state, _ = self._passes.now()
        state.awaits = torch.Size((*query.shape[:-1], key.shape[-2]))
        with _exactly(query):
            kept = self.before(state, lambda: _scores(query, key, mask, causal, scale))
        if kept is None:
            return None
        if mask is None and causal:
            mask = torch.ones(state.awaits[-2:], dtype=torch.bool, device=query.device).tril()
        return None, None, _hide(mask, kept), False, None

    def _before_softmax(self, scores: torch.Tensor, dim: int) -> tuple[torch.Tensor | None, None] | None:
        self._looked = True
        if scores.dim() != 4 or dim not in (-1, 3) or self._skips.unreadable(scores):
            return None
        state, _ = self._passes.now()
        state.awaits = scores.shape
        with _exactly(scores):
            kept = self.before(state, lambda: _wide(scores))
        return None if kept is None else (_hide(scores, kept), None)

    def _after(
        self, output: torch.Tensor, place: Place, inputs: tuple[torch.Tensor, ...] | None = None
    ) -> torch.Tensor | None:
        self._looked = True
        if output.dim() != 4 or self._skips.unreadable(output):
            return None
        state, recomputed = self._passes.now()
        if state.awaits is None or (inputs and (inputs[0].shape != state.awaits or inputs[1].dim() != 4)):
            return None  # a product of other things
        with _exactly(output):
            kept = self.after(state, output.detach())
        state.awaits = None
        if not recomputed:
            self._add(state.layer, place, output.shape, kept)
        state.layer += 1
        return None if kept.heads is None else output.masked_fill(~kept.heads[..., None, None], 0)

    def _add(self, layer: int, place: Place, shape: torch.Size, kept: Kept) -> None:
        samples, heads = shape[0], shape[0] * shape[1]
        heads_kept = heads if kept.heads is None else kept.heads.expand(shape[:2]).sum()
        with self._lock, of_torch.untransformed():
            self._layers_seen = max(self._layers_seen, layer + 1)
            sums = self._sums.get((layer, place), [0] * 5)
            more = samples, kept.tokens, kept.tokens_kept, heads, heads_kept
            self._sums[layer, place] = [sum + _plain(one) for sum, one in zip(sums, more, strict=True)]


def _place(context: OpContext) -> Place:
    return Place.of(context)._replace(op_id=None)  # rows count layers, not operators


def _plain(number: torch.Tensor | int) -> torch.Tensor | int:
    return of_torch.plain(number) if isinstance(number, torch.Tensor) else number


def _hide(scores: torch.Tensor | None, kept: torch.Tensor) -> torch.Tensor:
    """Scores, or a mask of `scaled_dot_product_attention`, in which no query sees the other keys."""
    kept = kept[:, None, None, :]
    if scores is None or scores.dtype == torch.bool:
        return kept if scores is None else scores & kept
    # Not -inf: a query that sees no key, such as that of a pruned token under a causal mask, would become NaN. And half of
    # the smallest number, so that a sum with scores stays finite. Its exponential is 0 as well.
    return scores.masked_fill(~kept, torch.finfo(scores.dtype).min / 2)


@contextlib.contextmanager
def _exactly(tensor: torch.Tensor) -> Iterator[None]:
    """A context without a graph, and without autocast's fewer digits: the computation of decisions is no part of the
    program."""
    with torch.no_grad(), torch.autocast(tensor.device.type, enabled=False):
        yield


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def _scores(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, causal: bool, scale: float | None
) -> torch.Tensor:
    """The scores of which `scaled_dot_product_attention` takes the softmax."""
    key = _wide(key).repeat_interleave(query.shape[1] // key.shape[1], 1)  # enable_gqa
    scores = _wide(query) @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
