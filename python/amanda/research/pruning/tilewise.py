"""TilewisePruning: rows of tiles are held at zero; all tiles of a model compete for their place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch

from amanda import Error, OpContext
from amanda.toolkit import locks, warn_here
from amanda.toolkit.arguments import check_choice
from amanda.toolkit.arrays import of_torch
from amanda.toolkit.torch import graph_task_id
from amanda.tools.pruning.masked import Masked
from amanda.tools.pruning.sparsity_schedule import SparsitySchedule, now
from amanda.tools.pruning.weight_pruning import WeightPruning


class TilewisePruning(WeightPruning):
    """Prunes whole rows inside tiles of a weight, a fraction of all weights of the model, by one global ranking::

        with amanda.apply(TilewisePruning(sparsity=0.75)):
            fine_tune(model)  # the first step runs dense: the tool gets to know the layers

    C. Guo et al.: Accelerating Sparse DNN Models without Hardware-Support via Tile-Wise Sparsity, SC 2020. The weight of
    an operator is the matrix of its GEMM: a column for each output, a row for each input; for a convolution a row for
    each input channel and place of the kernel. (Each group of a convolution has a matrix of its own, and a transposed
    convolution a column for each output channel and place of the kernel.) The matrix is cut into tiles of `tile`
    columns. A row of a tile is kept or pruned as a whole, so a tile remains a smaller, dense GEMM. Its score is the mean
    importance of its weights. The rows of all tiles of all operators are ranked together, and the lowest are pruned
    until `sparsity` of all weights is reached: ``round(sparsity * weights)``, and at most one row more. Equal scores go
    in the order in which the operators first ran. A weight that several operators use counts once, and has one mask.

    The ranking needs all weights. So an operator runs dense the first time, with a mask of ones. All operators that
    have run so far are ranked when one of them runs again. They are ranked again if there are new operators, or if the
    sparsity changed. (In a pass that runs a layer several times, its later runs may be ranked before the rest of the
    model was seen. From the second pass on, all operators are ranked.) `rank` ranks them at once, at any time. The
    masks belong to the tool, not to the scope: another scope goes on with them, until `reset`. See `WeightPruning` for
    what is pruned, rows, and more arguments.

    With ``importance="taylor"``, as in the paper, the importance of a weight is ``|weight * gradient|``, the change of
    the loss to first order if it were zero, with the gradients in ``parameter.grad``; otherwise ``|weight|``. Gradients
    exist only after a backward pass, so masks are made by `rank` alone, or by the schedule::

        loss.backward()
        pruning.rank()  # or, with TilewisePruning(schedule, importance="taylor"): schedule.step()
        optimizer.zero_grad()

    A pruned weight has the gradient zero, hence the lowest importance: it stays pruned while the sparsity grows.

    Arguments:
        sparsity: the fraction of all weights to prune, 0 to 1, or a `SparsitySchedule`.
        tile: the number of columns of a tile; the last tile of a matrix may be narrower.
        importance: "magnitude" or "taylor".
        columns: if True, as in the paper's two-dimensional form, whole columns are pruned first, with a global ranking of
            their own, ``1 - sqrt(1 - sparsity)`` of all weights; tiles are cut from those that are left.

    Raises:
        TypeError: `tile` is not an integer.
        ValueError: `sparsity` is not in its range, `tile` is not positive, or there is no such importance.
        amanda.Error: an operator runs whose weight is computed, or no parameter, so a ranking cannot read it.
    """

    def __init__(
        self,
        sparsity: float | SparsitySchedule = 0.5,
        tile: int = 128,
        *,
        importance: Literal["magnitude", "taylor"] = "magnitude",
        columns: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._take(sparsity)
        if not isinstance(tile, int):
            raise TypeError(f"[pruning] tile= is a number of columns, got {tile!r}")
        if tile < 1:
            raise ValueError(f"[pruning] a tile has 1 column or more, got {tile}")
        check_choice("[pruning] importance=", importance, ("magnitude", "taylor"))
        self.tile, self.importance, self.columns = tile, importance, columns
        self._weights: dict[object, Masked] = {}  # one user of each weight; guarded by _lock
        self._ranked: object = None  # what the last ranking was made of
        self._ranking = locks.rlock()
        if isinstance(sparsity, SparsitySchedule):
            sparsity.when_changed(self._follow)

    def rank(self) -> None:
        """Ranks the weights of all operators that have run, as they are now, and makes their masks.

        Raises:
            amanda.Error: no operator has run; or ``importance="taylor"``, and a weight has no gradient.
        """
        with self._ranking, of_torch.lasting():
            made_of, sparsity = self._now_known(), now(self.sparsity)
            with self._lock:
                users = list(self._weights.values())
            known = [(user, weight) for user in users if (weight := user.current_weight()) is not None]
            if not known:
                raise Error("[pruning] no operator with a weight has run; run the model in a scope of the tool first")
            masks = [torch.ones_like(weight, memory_format=torch.contiguous_format) for _, weight in known]
            if sparsity > 0:
                scores = [self._importance(user, weight) for user, weight in known]
                self._prune(_matrices(known, scores), _matrices(known, masks), sparsity)
            of_weights = {user.key: mask for (user, _), mask in zip(known, masks, strict=True)}
            for masked in self._known():
                if masked.key in of_weights and masked.mask is not None:
                    self._keep(masked, masked.mask, of_weights[masked.key], self._version())
            self._ranked = made_of

    def apply_to(self, model: torch.nn.Module) -> None:
        if self._needs_rank():
            raise Error("[pruning] there are no masks yet; call rank() after backward(), before zero_grad()")
        super().apply_to(model)

    def reset(self) -> None:
        super().reset()
        with self._lock:
            self._weights.clear()
            self._ranked = None

    def on_exit(self, error: BaseException | None) -> None:
        super().on_exit(error)
        if error is None and self._needs_rank():
            warn_here(
                "[pruning] nothing is pruned: taylor importance needs gradients; call rank() after backward(), before "
                "zero_grad()",
                UserWarning,
            )

    def _analyze_graph(self, context: OpContext) -> None:
        raise Error(
            f"[pruning] TilewisePruning ranks the parameters of PyTorch, and cannot prune {context.op.name}; "
            "MagnitudePruning and VectorwisePruning can"
        )

    @property
    def _is_fixed(self) -> bool:
        return False  # ranked again when another operator has run

    def get_mask(self, weight: torch.Tensor, dim: int) -> torch.Tensor:
        """The mask of an operator that was not ranked yet: it stays dense."""
        return torch.ones_like(weight)

    def _mask_of(self, masked: Masked, weight: torch.Tensor) -> torch.Tensor | None:
        if masked.weight is None:
            raise Error(
                f"[pruning] the weight of {masked.place} is computed, or no parameter, and can't be read when all "
                "are ranked; leave the operator dense with where="
            )
        with self._lock:
            known = self._masked.get(masked.id)
        if known is None:
            plain = of_torch.plain(weight)
            if plain.shape != weight.shape:
                return None
            known = masked
            with self._lock:
                user = self._weights.setdefault(masked.key, masked)
                if user.weight is None or user.weight.parameter() is None:  # of another one, with the same address
                    user = self._weights[masked.key] = masked
            is_new = user is masked or user.mask is None
            with of_torch.untransformed():
                self._keep(masked, plain, self.get_mask(plain, masked.dim) if is_new else user.mask, self._version())
        mask: torch.Tensor | None = known.mask
        assert mask is not None
        return mask

    def _mask_weight(self, weight: torch.Tensor, masked: Masked) -> torch.Tensor | None:
        masked = masked.with_part(weight)
        has_run = masked.runs == self._resets
        # Not in a recomputed region: it must compute what the first run did.
        if has_run and self.importance == "magnitude" and graph_task_id() == -1:
            self._renew_outdated()
        masked.runs = self._resets
        return super()._mask_weight(weight, masked)

    def _renew_outdated(self) -> None:
        if self.importance == "magnitude" and self._ranked != self._now_known() and self._known():
            self.rank()

    def _needs_rank(self) -> bool:
        has_masks = self._ranked is not None or now(self.sparsity) == 0
        return self.importance == "taylor" and not has_masks and bool(self._known())

    def _follow(self) -> None:
        if self._known():
            self.rank()

    def _known(self) -> list[Masked]:
        with self._lock:
            return list(self._masked.values())

    def _now_known(self) -> object:
        return self._version(), len(self._weights)

    def _importance(self, masked: Masked, weight: torch.Tensor) -> torch.Tensor:
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
        if self.importance == "magnitude":
            return weight.abs().contiguous()
        assert masked.weight is not None
        parameter = masked.weight.parameter()
        if parameter is None or parameter.grad is None:
            raise Error(
                f"[pruning] {masked.weight.name!r}, the weight of {masked.place}, has no gradient, and taylor "
                "importance needs one; call rank() or schedule.step() after backward(), before zero_grad(), and leave "
                "weights that are not trained dense with where="
            )
        return (weight * masked.weight.part_of(parameter.grad)).abs().contiguous()

    def _prune(self, scores: Sequence[torch.Tensor], masks: Sequence[torch.Tensor], sparsity: float) -> None:
        """Sets masks to zero. All are matrices with a row for each output: the GEMM's, transposed."""
        total = sum(score.numel() for score in scores)
        outputs = [torch.arange(len(score), device=score.device) for score in scores]
        pruned = 0
        if self.columns:
            of_columns = [score.mean(1, dtype=torch.float64) for score in scores]
            count = round((1 - math.sqrt(1 - sparsity)) * total)
            for i, stays in enumerate(_without_lowest(of_columns, [score.shape[1] for score in scores], count)):
                masks[i][~stays] = 0
                outputs[i] = outputs[i][stays]
                pruned += int((~stays).sum()) * scores[i].shape[1]
        if pruned == total:
            return
        tiles = [(i, tile) for i, left in enumerate(outputs) for tile in left.split(self.tile) if len(tile)]
        of_rows = [scores[i][tile].mean(0, dtype=torch.float64) for i, tile in tiles]
        kept = _without_lowest(of_rows, [len(tile) for _, tile in tiles], round(sparsity * total) - pruned)
        for (i, tile), stays in zip(tiles, kept, strict=True):
            masks[i][tile] = stays.to(masks[i])


def _matrices(known: Sequence[tuple[Masked, object]], weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Views of contiguous weights: a matrix (outputs, inputs) for each product that their operators compute."""
    matrices: list[torch.Tensor] = []
    for (masked, _), weight in zip(known, weights, strict=True):
        if masked.dim < 0:  # a factor of a matrix product
            factors = weight.movedim(masked.dim, -1)
            matrices += factors.flatten(0, -3) if weight.dim() > 2 else [factors]
        else:
            by_group = weight.view(masked.groups, weight.shape[0] // masked.groups, -1)
            matrices += by_group.mT if masked.dim == 0 else by_group
    return matrices


def _without_lowest(scores: Sequence[torch.Tensor], sizes: Sequence[int], count: int) -> list[torch.Tensor]:
    """True for what stays when those with the lowest scores go, until `count` weights are gone.

    Arguments:
        scores: vectors.
        sizes: how many weights each element of a vector stands for.
    """
    lengths = [len(score) for score in scores]
    order = torch.cat([score.cpu() for score in scores]).argsort(stable=True)
    gone = torch.tensor(sizes).repeat_interleave(torch.tensor(lengths))[order].cumsum(0)
    stays = torch.ones(len(order), dtype=torch.bool)
    stays[order[: int((gone < count).sum()) + 1 if count > 0 else 0]] = False
    return [each.to(score.device) for each, score in zip(stays.split(lengths), scores, strict=True)]
