"""Which observer of `torch.ao.quantization` finds the range of which operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.ao.quantization.observer import (
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
