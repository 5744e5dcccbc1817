"""Flops: the tool."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Never

from amanda.toolkit import Column, Grouping, Results, Unseen, evidence, fields_of, number_column
from amanda.toolkit.native import NativeTool, tools
from amanda.toolkit.operators import WEIGHTED, vocabularies

from .compiled_flops import CompiledFlops

GroupBy = Literal["both", "op", "module"]

_CPU_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
_HOW_TO_COUNT = "count it by Flops(cpu_attention=True), or amanda flops --cpu-attention"


@dataclasses.dataclass(frozen=True)
class Row:
    """All runs of one operator type in one innermost module, forward or backward.

    By "op": of one operator type. By "module": of one module with its submodules, forward and backward.
    """

    op: str  # "aten::addmm"; in PyTorch's backward pass the autograd node, "AddmmBackward0"; by "module": ""
    module_path: str  # by "op": ""
    backward: bool | None  # by "module": None
    runs: int
    flops: int

    @property
    def name(self) -> str:
        """The subject of the row: `op`, or by "module" the module's path."""
        return self.module_path if self.backward is None else self.op


class Flops(Results[Row, GroupBy], NativeTool):
    """Counts floating point operations, by the conventions of `torch.utils.flop_counter.FlopCounterMode`::

        flops = Flops()
        with amanda.apply(flops):
            model(x).sum().backward()
        print(flops.total, flops.uncounted)
        print(flops.table("module", top=10))

    A multiplication and an addition are two operations. Matrix products, convolutions, recurrent layers and fused
    attention are counted, also inside other operators, with integers as with floats; biases, masks, normalization and
    pointwise operators are not. Gradients are counted if they are computed. An operator that multiplies and was not
    counted is in `uncounted_products` and below tables: a solver, or one whose operands do not show their sizes. The
    conventions are the same on TensorFlow, except that there the gradient of a filter with groups takes as many
    operations as the convolution. The tool is written in C++ and reads only shapes. Counts accumulate over all runs,
    scopes and threads in which the tool is used. Operators that checkpointing recomputes are counted again. Functions
    that are compiled stay compiled; rows are those of the operators that the functions would call in eager mode.

    Rows are by "both" (the default: operator type and innermost module), by "op", or by "module", where each module
    includes its submodules and "" is the whole program. See `Results` for `rows`, `table`, `to_pandas` and `reset`.

    Arguments:
        uncounted: if True, observe all operators, to list those in which nothing was counted. If False, those that do not
            multiply cost nothing; operators of other libraries are not listed.
        cpu_attention: count fused attention on the CPU as on other devices. FlopCounterMode does not count it.
    """

    _speaker = "flops"

    def __init__(self, uncounted: bool = True, cpu_attention: bool = False) -> None:
        capsule, self._counts, self._narrow = tools.make_flops(uncounted, cpu_attention, _described())
        super().__init__(capsule)
        self._compiled = CompiledFlops(self._counts, uncounted, cpu_attention)
        self.depends_on(self._compiled)

    def narrow(
        self, *, ops: str | Iterable[str] | None = None, modules: str | Iterable[str] | None = None, **unknown: Never
    ) -> None:
        """As in all tools. `ops` are operators that are counted: `addmm`, which `linear` runs.

        Raises:
            TypeError, amanda.Error: as in all tools.
            ValueError: as in all tools; or nothing is counted in these operators themselves.
        """
        self._refuse_keywords("narrow", unknown)
        names, paths = self._names("narrow", ops), self._paths("narrow", modules)
        self._narrow(names, paths)
        self._compiled.narrow_to(names, paths)

    @property
    def total(self) -> int:
        """All operations so far."""
        return self._counts.total() + sum(flops for _, flops in self._compiled.rows().values())

    def by_operator(self) -> dict[str, int]:
        """Operations per operator type: "aten::addmm" forward, "AddmmBackward0" (the autograd node) backward."""
        return _merged(self._counts.by_operator(), ((op, n) for (op, _, _), (_, n) in self._compiled.rows().items()))

    def by_module(self) -> dict[str, int]:
        """Operations per module path, including submodules; "" is the total.

        Backward operators count for the module that called their forward operator.
        """
        rows = self._compiled.rows().items()
        return _merged(self._counts.by_module(), ((one, n) for (_, path, _), (_, n) in rows for one in _around(path)))

    @property
    def uncounted(self) -> dict[str, int]:
        """Types of the outermost operators in which nothing was counted, and how often they ran; views are excluded.

        Those of `uncounted_products` are listed where they ran, also inside others, in place of the outermost. If a
        counted operator has a backward operator without a formula (double backward of a convolution or of attention), it
        is listed by the name of its autograd node. Otherwise, an operator in this list also stands for its backward
        operators. One that was counted is listed, too, where it took more than was counted: if forward-mode
        differentiation computes tangents in a way that its operands do not show (`torch.func.jvp`).
        """
        return _merged(self._counts.uncounted(), self._compiled.uncounted().items())

    @property
    def uncounted_products(self) -> dict[str, int]:
        """Those of `uncounted` that multiply, as a convolution or a solver does, or that are of another library.

        Amanda does not know what another library's operator does, so such an operator may multiply.
        """
        return _merged(self._counts.uncounted_products(), self._compiled.uncounted_products().items())

    def reset(self) -> None:
        self.reset_evidence()
        self._counts.reset()
        self._compiled.clear()

    def _omissions(self) -> list[Unseen]:
        return evidence.facts("uncounted", [f"{name} ({_calls(count)})" for name, count in self._products()])

    def _products(self) -> list[tuple[str, int]]:
        """`uncounted_products`, most first."""
        return sorted(self.uncounted_products.items(), key=lambda item: -item[1])

    def _rows(self, by: GroupBy) -> list[Row]:
        rows = [Row(row.op, row.module_path, row.backward, row.runs, row.flops) for row in self._counts.rows()]
        rows = _summed([*rows, *(Row(*row, *sums) for row, sums in self._compiled.rows().items())])
        if by == "op":
            return _summed(Row(row.op, "", row.backward, row.runs, row.flops) for row in rows)
        if by == "module":
            return _summed(
                Row("", path, None, row.runs, row.flops) for row in rows for path in _around(row.module_path)
            )
        return rows

    def _remarks(self, by: GroupBy) -> list[str]:
        hidden = [one.text for one in self.evidence().unseen if one.reason == "hidden"]  # they may multiply
        return [*_remarks(self._products()), *hidden]

    _op = Column("op", lambda row: row.op or "", left=True, folds=True, field="op")
    _module = Column("module", lambda row: row.module_path or "(all)", left=True, folds=True, field="module_path")
    _own_module = _module._replace(cell=lambda row: row.module_path or "(no module)")
    _counted = (number_column("runs", "runs"), number_column("MFLOP", "flops", 1e6, 3))
    _groupings = {
        "both": Grouping([_op, _own_module, *_counted], fields_of(Row, backward="bool"), lambda rows: _total(rows)),
        "op": Grouping(
            [_op, *_counted], fields_of(Row, without=["module_path"], backward="bool"), lambda rows: _total(rows)
        ),
        "module": Grouping([_module, *_counted], fields_of(Row, without=["op", "backward"])),
    }


def _described() -> list[tuple[str, str, str, str, str]]:
    """The operators of graphs that words stand for, with a formula: as `make_flops` takes them."""
    found: list[tuple[str, str, str, str, str]] = []
    for _, known in vocabularies():
        for word, operators in known.words.items():
            if word not in WEIGHTED or known.namespace == "pytorch":  # whose innermost operators are counted
                continue
            formula = (
                "transposed convolution" if "transpose" in word else "convolution" if "conv" in word else "product"
            )
            left, right = ("left", "right") if word == "matmul" else ("input", "weight")
            layout = known.weight_layouts.get(word, "")
            found += [(name, formula, roles[left], roles[right], layout) for name, roles in operators.items()]
    return found


def _remarks(products: Sequence[tuple[str, int]]) -> list[str]:
    """Sentences on products that were not counted, with their calls."""
    calls = dict(products)
    attention = calls.pop(_CPU_ATTENTION, 0)
    listed = ", ".join(f"{name} {count:,}" for name, count in calls.items())
    return [
        *([f"not counted, may multiply (calls): {listed}"] if calls else []),
        *([f"fused attention on the CPU was not counted ({_calls(attention)}): {_HOW_TO_COUNT}"] if attention else []),
    ]


def _merged(counts: Mapping[str, int], more: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The sums, by name."""
    found = collections.Counter(counts)
    for name, count in more:
        found[name] += count
    return dict(sorted(found.items()))


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def _around(path: str) -> list[str]:
    """The module and those around it, outermost first; "" for the program."""
    parts = path.split(".") if path else []
    return ["", *(".".join(parts[:end]) for end in range(1, len(parts) + 1))]


def _summed(rows: Iterable[Row]) -> list[Row]:
    groups: dict[tuple[str, str, bool | None], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.op, row.module_path, row.backward), []).append(row)
    return [_sum(*key, group) for key, group in groups.items()]


def _total(rows: Sequence[Row]) -> Row:
    return _sum("", "", None, rows)


def _sum(op: str, module_path: str, backward: bool | None, rows: Sequence[Row]) -> Row:
    return Row(op, module_path, backward, sum(row.runs for row in rows), sum(row.flops for row in rows))
