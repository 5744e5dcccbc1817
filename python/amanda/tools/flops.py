"""Flops: floating point operations of every operator run, forward and backward, per operator type and module."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from amanda import _tools
from amanda.reports.data_frame import data_frame, field_names
from amanda.tool import NativeTool

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True)
class Row:
    """All runs of one operator type in one innermost module, forward or backward."""

    op: str  # "aten::addmm"; in backward the autograd node, "AddmmBackward0"
    module_path: str
    backward: bool
    runs: int
    flops: int


class Flops(NativeTool):
    """Counts floating point operations, by the conventions of `torch.utils.flop_counter.FlopCounterMode`::

        flops = Flops()
        with amanda.apply(flops):
            model(x).sum().backward()
        print(flops.total, flops.by_operator(), flops.by_module(), flops.uncounted)

    A multiplication and an addition are two operations. Matrix products, convolutions and fused attention are counted,
    also inside other operators; biases, masks, normalization and pointwise operators are not. Gradients are
    counted if they are computed. The tool is written in C++ and reads only shapes. Counts accumulate over all runs,
    scopes and threads in which the tool is used. What checkpointing recomputes is counted again.

    Arguments:
        uncounted: if True, observe all operators, to list those in which nothing was counted. If False, operators that
            are not counted cost nothing.
        cpu_attention: count fused attention on the CPU as on other devices. FlopCounterMode does not count it.
    """

    def __init__(self, uncounted: bool = True, cpu_attention: bool = False) -> None:
        capsule, self._counts = _tools.make_flops(uncounted, cpu_attention)
        super().__init__(capsule)

    @property
    def total(self) -> int:
        """All operations so far."""
        return self._counts.total()

    def by_operator(self) -> dict[str, int]:
        """Operations per operator type: "aten::addmm" forward, "AddmmBackward0" (the autograd node) backward."""
        return self._counts.by_operator()

    def by_module(self) -> dict[str, int]:
        """Operations per module path, including submodules; "" is the total.

        Backward operators count for the module that called their forward operator.
        """
        return self._counts.by_module()

    @property
    def uncounted(self) -> dict[str, int]:
        """Types of the outermost operators in which nothing was counted, and how often they ran; views are excluded.

        If a counted operator has a backward operator without a formula (double backward of a convolution or of
        attention), it is listed by the name of its autograd node. Otherwise, an operator in this list also stands for
        its backward operators.
        """
        return self._counts.uncounted()

    def rows(self) -> list[Row]:
        """What was counted, per operator type and innermost module."""
        return [Row(row.op, row.module_path, row.backward, row.runs, row.flops) for row in self._counts.rows()]

    def reset(self) -> None:
        """Resets all counts to zero."""
        self._counts.reset()

    def to_pandas(self) -> pandas.DataFrame:
        """`rows` as a data frame with a column for each field.

        Raises:
            ImportError: pandas is not installed.
        """
        return data_frame(
            "flops", self.rows(), field_names(Row), {"backward": "bool", "runs": "int64", "flops": "int64"}
        )
