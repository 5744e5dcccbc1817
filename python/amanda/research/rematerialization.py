"""Rematerialization: training in a budget of memory; activations are dropped, and computed again in the backward pass."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Literal, get_args

import torch  # noqa: F401  (the extension module needs its libraries)

from amanda.toolkit import Column, Grouping, Results, Unseen, evidence, fields_of, number_column
from amanda.toolkit.arguments import check_choice
from amanda.toolkit.native import NativeTool, rematerialization

__all__ = ["GroupBy", "Heuristic", "Rematerialization", "Row"]

GroupBy = Literal["op", "reason"]
Heuristic = Literal["dtr", "dtr_local", "msps", "lru", "size"]


@dataclasses.dataclass(frozen=True)
class Row:
    """The results of one operator type in one module that were kept, evicted or recomputed.

    By "reason": all tensors that were kept for this reason.
    """

    op: str  # "aten::gelu"; "" if no recorded operator made them
    module_path: str
    kept_because: str  # why they cannot be computed again; "" if they can
    kept: int
    kept_bytes: int
    evicted: int
    evicted_bytes: int
    recomputed: int  # runs of the operator
    recompute_ns: int

    @property
    def name(self) -> str:
        """The subject of the row: `op`, or by "reason" the reason."""
        return self.op or self.kept_because


class Rematerialization(Results[Row, GroupBy], NativeTool):
    """Keeps the memory of a training step below a budget, without a change to the model::

        rematerialization = Rematerialization(budget=500_000_000)  # bytes
        with amanda.apply(rematerialization):
            train_one_epoch(model)
        print(rematerialization.peak, rematerialization.table("reason"))

    Dynamic tensor rematerialization (DTR; Kirisame et al., ICLR 2021): when an allocation would go over the budget, the
    tool evicts the activation with the lowest score among those that only autograd holds. When a backward operator asks
    for it, the tool runs the operator that made it again, on the same inputs, and before that those that made evicted
    inputs. Losses, gradients, buffers and random states are those of the program without the tool, bit for bit.

    The tool counts the bytes that PyTorch allocates for the CPU on this thread while the scope is open, until they are
    freed: activations, gradients, temporary tensors, but no parameters or inputs from before. Memory that a library
    takes by itself, such as oneDNN's scratchpads, is not seen. Tensors on other devices are neither counted nor evicted.

    Some tensors cannot be computed again, and are kept. These are results of random operators, of in-place operators
    and of custom operators, parameters and inputs, tensors without a gradient, and tensors made from something that is
    gone. Rows count them by reason. Tensors that the program itself still holds take their memory in any case.
    Operators of functions that run compiled with taps (``compiled="graph"``) are not run again: what they saved is kept.

    Rows are by "op" (the default: operator type, module, and why results were kept) or by "reason". Tensors that a
    graph kept are counted when the graph is freed. See `Results` for `rows`, `table`, `to_pandas` and `reset`.

    Arguments:
        budget: in bytes.
        heuristic: what the score of a tensor is. Staleness counts the operators since the last use; a neighborhood are
            the evicted tensors that are needed to compute this one again, or that need this one.

            - "dtr": (cost + cost of the evicted neighborhood) / (size * staleness), the paper's h_DTR
            - "dtr_local": cost / (size * staleness)
            - "msps": (cost + cost of evicted tensors that are needed) / size
            - "lru": 1 / staleness
            - "size": 1 / size
        costs: "time" is what each run of an operator took. "equal" counts every operator as 1: then each run of a program
            evicts the same tensors.

    Raises:
        TypeError: `budget` is not an integer.
        ValueError: `budget` is not positive; there is no such heuristic or cost.
        amanda.Error: at the next operator after a backward pass, or at the end of the scope: the pass needed more than
            the budget with everything evicted that can be. The pass was completed over the budget, and its gradients are
            right. The message has a budget that works for this pass in every run, as nothing is evicted with it, and the
            smallest one that may work: with that it depends on what is evicted. Also where a scope with another such
            tool is open on the thread.
    """

    needs_eager = "what it saves is not known"
    leaves_compiled_out = True
    _speaker = "rematerialization"
    _alone = "one budget is in force on a thread"

    def __init__(self, budget: int, heuristic: Heuristic = "dtr", *, costs: Literal["time", "equal"] = "time") -> None:
        try:
            self.budget = operator.index(budget)
        except TypeError:
            raise TypeError(
                f"[rematerialization] budget= is a number of bytes, got {budget!r}; write 500_000_000 for 500 MB"
            ) from None
        if self.budget <= 0:
            raise ValueError(f"[rematerialization] budget= is a positive number of bytes, got {budget}")
        check_choice("[rematerialization] heuristic=", heuristic, get_args(Heuristic))
        check_choice("[rematerialization] costs=", costs, ("time", "equal"))
        self._rematerializer = rematerialization.Rematerializer(self.budget, heuristic, costs == "equal")
        super().__init__(self._rematerializer.tool())

    @property
    def peak(self) -> int:
        """The most bytes that were alive at once, since the tool was made or `reset`."""
        return self._rematerializer.peak

    def reset(self) -> None:
        self.reset_evidence()
        self._rematerializer.reset()

    def _unread(self) -> list[Unseen]:
        return evidence.of_left_out(self._rematerializer.left_out())

    def _remarks(self, by: GroupBy) -> list[str]:
        return [unseen.text for unseen in self._unread()]

    def _rows(self, by: GroupBy) -> list[Row]:
        groups: dict[tuple[str, str, str], list[Row]] = {}
        for found in self._rematerializer.rows():
            row = Row(*(getattr(found, field.name) for field in dataclasses.fields(Row)))
            key = (row.op, row.module_path, row.kept_because) if by == "op" else ("", "", row.kept_because)
            groups.setdefault(key, []).append(row)
        rows = [_sum(key, rows) for key, rows in groups.items()]
        return sorted(rows, key=lambda row: (-row.evicted, -row.kept, row.op, row.module_path, row.kept_because))

    _reason = Column("kept because", lambda row: row.kept_because, left=True, field="kept_because")
    _numbers = (
        number_column("kept", "kept"),
        number_column("MB", "kept_bytes", 1e6, 3),
        number_column("evicted", "evicted"),
        number_column("MB", "evicted_bytes", 1e6, 3),
        number_column("recomputed", "recomputed"),
        number_column("ms", "recompute_ns", 1e6, 2),
    )
    _groupings = {
        "op": Grouping(
            [
                Column("op", lambda row: row.op or "(none)", left=True, folds=True, field="op"),
                Column("module", lambda row: row.module_path, left=True, folds=True, field="module_path"),
                _reason,
                *_numbers,
            ],
            fields_of(Row),
            lambda rows: _sum(("", "", ""), rows),
        ),
        "reason": Grouping(
            [
                _reason._replace(cell=lambda row: row.kept_because or "(can be computed again)"),
                *_numbers,
            ],
            fields_of(Row, without=["op", "module_path"]),
            lambda rows: _sum(("", "", ""), rows),
        ),
    }


def _sum(key: tuple[str, str, str], rows: Iterable[Row]) -> Row:
    numbers = [
        (row.kept, row.kept_bytes, row.evicted, row.evicted_bytes, row.recomputed, row.recompute_ns) for row in rows
    ]
    return Row(*key, *(sum(column) for column in zip(*numbers, strict=True)))
