"""Which observer of `torch.ao.quantization` finds the range of which operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.ao.quantization.observer import (
    HistogramObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    UniformQuantizationObserverBase,
)

from amanda import ops as amanda_ops

MakeObserver = Callable[[], UniformQuantizationObserverBase]
Places = Mapping[str, Mapping[int | str, MakeObserver]]

int8_activation: MakeObserver = MovingAverageMinMaxObserver.with_args(dtype=torch.quint8)
"""0 to 255, one scale and zero point per tensor; the range follows about the last hundred runs."""

int8_weight: MakeObserver = MovingAveragePerChannelMinMaxObserver.with_args(
    dtype=torch.qint8, qscheme=torch.per_channel_symmetric, ch_axis=0
)
"""-128 to 127, symmetric around zero, one scale per output channel."""

INT8: Places = {
    **{name: {"input": int8_activation, "weight": int8_weight} for name in amanda_ops.linear + amanda_ops.convolution},
    **{name: dict.fromkeys(amanda_ops.factors[name], int8_activation) for name in amanda_ops.matmul},
    "scaled_dot_product_attention": {"query": int8_activation, "key": int8_activation, "value": int8_activation},
}
"""Both factors of every product."""


class PercentileObserver(HistogramObserver):  # type: ignore[misc]  # mypy does not follow torch
    """The range between two percentiles of all values that were observed: outliers are clamped.

    They are found in the histogram of `HistogramObserver`, so they are as exact as its 2048 bins.

    Arguments:
        percentile: above 50, up to 100. The range is from percentile ``100 - percentile`` to `percentile`; 100 gives the
            range of `MinMaxObserver`.
        options: see `HistogramObserver`, such as ``dtype`` and ``reduce_range``.

    Raises:
        ValueError: `percentile` is not in that range.
    """

    def __init__(self, percentile: float = 99.99, **options: Any) -> None:
        super().__init__(**options)
        if not 50 < percentile <= 100:
            raise ValueError(f"[quantization] percentile= is above 50, up to 100; got {percentile!r}")
        self.percentile = percentile

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        share = self.histogram.double().cumsum(0) / self.histogram.sum()
        edges = torch.linspace(self.min_val.item(), self.max_val.item(), self.bins + 1)
        low = torch.searchsorted(share, torch.tensor(1 - self.percentile / 100, dtype=torch.double), right=True)
        high = torch.searchsorted(share, torch.tensor(self.percentile / 100, dtype=torch.double)) + 1
        qparams: tuple[torch.Tensor, torch.Tensor] = self._calculate_qparams(edges[low], edges[high])
        return qparams
