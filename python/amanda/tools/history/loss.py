"""The loss of a step, found where a backward pass begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from amanda.tools.gradients import GradientStatistics
from amanda.tools.statistics import OpStatistics


def loss_of(found: Sequence[tuple[Any, Sequence[Any]]], loss_scale: float) -> Iterator[float]:
    """The mean of the step's losses, if it is known.

    Arguments:
        found: the rows of each tool.
        loss_scale: by what the loss was multiplied.
    """
    gradients = [rows for tool, rows in found if isinstance(tool, GradientStatistics)]
    outputs = [rows for tool, rows in found if isinstance(tool, OpStatistics)]
    first = next((row for rows in gradients for row in rows if row.side == "grad_output"), None)
    if first is None or first.op_id is None:
        return
    for row in (row for rows in outputs for row in rows if row.op_id == first.op_id and row.output == first.position):
        if row.elements == row.calls and not row.nans and not row.infs and row.mean is not None:
            yield row.mean / loss_scale
