"""Observers in addition to those of `torch.ao.quantization`."""

from __future__ import annotations

from typing import Any

import torch
from torch.ao.quantization.observer import HistogramObserver


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
