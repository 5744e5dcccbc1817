"""ActivationPruning: small activations are set to zero."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from amanda import OpContext, Tool
from amanda.toolkit import Column, Results, Skips, TellsSkips, Where, frameworks, locks, number_column
from amanda.toolkit.arrays import of_torch
from amanda.toolkit.places import GroupBy, Place, PlaceRow, add_up, counted_groupings, grouped
from amanda.tools.pruning.sparsity_schedule import SparsitySchedule, checked, now

RECTIFIERS = tuple(
    name + in_place
    for name in ("relu", "relu6", "hardtanh", "leaky_relu", "elu", "gelu", "silu", "mish", "hardswish")
    for in_place in ("", "_")
)
"""Activation functions that are about zero where a unit is off. `nn.ReLU6` runs as `hardtanh`."""

Sparsity = float | SparsitySchedule
Names = str | tuple[str, ...]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class ActivationRow(PlaceRow):
    """The activations of one operator, or of all operators of a type, a module or a line."""

    calls: int
    elements: int
    zeros: int
    pruned: int  # zeros that the tool made

    @property
    def sparsity(self) -> float:
        """The fraction of elements that are zero, 0 to 1."""
        return self.zeros / self.elements if self.elements else 0.0


class ActivationPruning(TellsSkips, Results[ActivationRow, GroupBy], Tool):
    """Sets small activations to zero, and reports how sparse activations are::

        pruning = ActivationPruning(threshold={"relu": 0.1, "silu": 0.02})
        with amanda.apply(pruning):
            fine_tune(model)
        print(pruning.table("module"))

    With `threshold`, an activation whose magnitude is below it becomes zero. For relu this is FATReLU, of M. Kurtz et
    al.: Inducing and Exploiting Activation Sparsity for Fast Inference on Deep Neural Networks, ICML 2020; for silu,
    gelu and others, whose small negative values go too, the same with the magnitude. With `sparsity`, only the largest
    magnitudes of each sample stay: ``size - round(sparsity * size)`` of its activations. A sample is an index of the
    first dimension; a vector is one sample.

    The gradient is zero where an activation was set to zero, and passed on elsewhere, as of
    ``torch.where(|y| < threshold, 0, y)`` after the activation function. NaNs stay. Results that are not floating-point
    tensors are left unchanged, and those whose elements cannot be read (sparse or distributed ones) too; these count in
    `skipped`.

    Rows are by "id" (the default: one operator at its place in the program), "op", "module" or "line", in the order in
    which they first ran. A recomputation by a checkpoint is a call of its own. See `Results` for `rows`, `table`,
    `to_pandas` and `reset`.

    Arguments:
        threshold: a number, 0 or more, for all activation functions of `RECTIFIERS`; or numbers for operators, by name or
            pattern as in `Tool.add_inst_for_op`.
        sparsity: the fraction of each sample's activations to prune, 0 to 1, or a `SparsitySchedule`; or one for each
            operator, as for `threshold`.
        where: called as ``where(context)`` once per operator; False leaves the operator unchanged. If it is never True,
            leaving the scope warns (`UnmatchedFilterWarning`).

    Raises:
        TypeError: neither or both of `threshold` and `sparsity` are given, or `where` is not callable.
        ValueError: an argument is out of range, or there is no such operator.
    """

    _speaker = "pruning"
    _groupings = counted_groupings(
        ActivationRow,
        [
            number_column("calls", "calls"),
            number_column("elements", "elements"),
            number_column("zeros", "zeros"),
            number_column("pruned", "pruned"),
            Column("sparsity", lambda row: f"{row.sparsity:.1%}", field="sparsity"),
        ],
        sparsity="float64",
    )

    def __init__(
        self,
        threshold: float | Mapping[str, float] | None = None,
        *,
        sparsity: Sparsity | Mapping[str, Sparsity] | None = None,
        where: Callable[[OpContext], object] = lambda context: True,
    ) -> None:
        super().__init__()
        self._where = Where("pruning", where)
        self._skips = Skips("pruning")
        self._found: dict[int | None, ActivationRow] = {}
        self._lock = locks.lock()  # guards the field above
        if threshold is not None and sparsity is None:
            for ops, value in _of_operators(threshold):
                self._add(ops, functools.partial(_is_small, threshold=_checked_threshold(value)))
        elif sparsity is not None and threshold is None:
            shares: list[tuple[Names, Sparsity]] = _of_operators(sparsity)
            for ops, share in shares:
                self._add(ops, functools.partial(_is_not_among_largest, sparsity=checked(share, "activations")))
                if isinstance(share, SparsitySchedule):
                    self.depends_on(share)
        else:
            raise TypeError(
                "[pruning] ActivationPruning takes a threshold or a sparsity: threshold=0.1 or sparsity=0.9; "
                f"got threshold={threshold!r}, sparsity={sparsity!r}"
            )

    def on_exit(self, error: BaseException | None) -> None:
        if error is None:
            self._where.tell(self)

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._found.clear()
        self._skips.reset()

    def _rows(self, by: GroupBy) -> list[ActivationRow]:
        with self._lock:
            return grouped(ActivationRow, self._found.values(), by)

    def _add(self, ops: Names, is_pruned: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.add_inst_for_op(functools.partial(self._analyze, is_pruned), ops=ops)

    def _analyze(self, is_pruned: Callable[[torch.Tensor], torch.Tensor], context: OpContext) -> None:
        if not frameworks.leaves_out(context, self._skips, "pytorch") and self._where(context):
            context.insert_after_op(self._prune, [0], differentiable=True, is_pruned=is_pruned, place=Place.of(context))

    def _prune(
        self, output: torch.Tensor, is_pruned: Callable[[torch.Tensor], torch.Tensor], place: Place
    ) -> torch.Tensor | None:
        if not output.is_floating_point() or self._skips.unreadable(output):
            return None
        small = is_pruned(output.detach())
        pruned = torch.where(small, 0, output)
        with of_torch.untransformed():
            self._count(place, of_torch.plain(output).detach(), of_torch.plain(small))
        return pruned

    def _count(self, place: Place, output: torch.Tensor, small: torch.Tensor) -> None:
        nonzero = int(output.count_nonzero())
        pruned = int((small & (output != 0)).count_nonzero())
        row = ActivationRow(*place, 1, output.numel(), output.numel() - nonzero + pruned, pruned)
        with self._lock:
            before = self._found.get(place.op_id)
            self._found[place.op_id] = row if before is None else add_up(ActivationRow, [before, row], place)


def _of_operators(given: T | Mapping[str, T]) -> list[tuple[Names, T]]:
    return list(given.items()) if isinstance(given, Mapping) else [(RECTIFIERS, given)]


def _checked_threshold(value: object) -> float:
    if not isinstance(value, (int, float)) or not value >= 0:
        raise ValueError(f"[pruning] a threshold is a magnitude, 0 or more; got {value!r}")
    return value


def _is_small(output: torch.Tensor, threshold: float) -> torch.Tensor:
    return output.abs() < threshold


def _is_not_among_largest(output: torch.Tensor, sparsity: Sparsity) -> torch.Tensor:
    samples = output.flatten(1) if output.dim() > 1 else output.reshape(1, -1)
    size = samples.shape[1]
    largest = samples.abs().topk(size - round(now(sparsity) * size)).indices
    return torch.ones_like(samples, dtype=torch.bool).scatter(1, largest, False).reshape(output.shape)
