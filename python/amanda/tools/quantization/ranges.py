"""Which observer finds the range of which operand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from amanda import ops as amanda_ops
from amanda.toolkit.operators import WEIGHTED
from amanda.tools.mapping import names_of

MakeObserver = Callable[[], Any]
"""Returns an observer of `torch.ao.quantization`."""

Places = Mapping[str, Mapping[int | str, MakeObserver]]


@dataclasses.dataclass(frozen=True)
class MovingRange:
    """Makes observers of PyTorch's tensors, and of arrays in graphs of other frameworks.

    The range follows about the last hundred runs.

    On PyTorch it makes a `MovingAverageMinMaxObserver` or `MovingAveragePerChannelMinMaxObserver` of
    `torch.ao.quantization`. Arrays are observed by the same arithmetic, in numpy.

    Arguments:
        quant_min, quant_max: the integers that a value is rounded to, such as 0 to 15 for 4 bits.
        symmetric: the range is as wide below zero as above.
        by_channel: one scale for each output channel, of a weight.
        averaging_constant: the weight of the newest run in the average.
    """

    quant_min: int = 0
    quant_max: int = 255
    symmetric: bool = False
    by_channel: bool = False
    averaging_constant: float = 0.01

    def __call__(self) -> Any:
        """An observer of PyTorch. Output channels are the first dimension."""
        import torch
        from torch.ao.quantization import observer

        options: dict[str, Any] = {
            "averaging_constant": self.averaging_constant,
            "dtype": torch.qint8 if self.quant_min < 0 else torch.quint8,
            "quant_min": self.quant_min,
            "quant_max": self.quant_max,
        }
        if self.by_channel:
            scheme = torch.per_channel_symmetric if self.symmetric else torch.per_channel_affine
            return observer.MovingAveragePerChannelMinMaxObserver(qscheme=scheme, ch_axis=0, **options)
        scheme = torch.per_tensor_symmetric if self.symmetric else torch.per_tensor_affine
        return observer.MovingAverageMinMaxObserver(qscheme=scheme, **options)


int8_activation = MovingRange()
"""0 to 255, one scale and zero point per tensor; the range follows about the last hundred runs."""

int8_weight = MovingRange(quant_min=-128, quant_max=127, symmetric=True, by_channel=True)
"""-128 to 127, symmetric around zero, one scale per output channel."""

INT8: Places = {
    **{name: {"input": int8_activation, "weight": int8_weight} for name in amanda_ops.linear + amanda_ops.convolution},
    **{name: dict.fromkeys(amanda_ops.factors[name], int8_activation) for name in amanda_ops.matmul},
    "scaled_dot_product_attention": {"query": int8_activation, "key": int8_activation, "value": int8_activation},
}
"""Both factors of every product."""

_WEIGHTED: Mapping[int | str, MakeObserver] = {"input": int8_activation, "weight": int8_weight}


def int8_by_roles() -> Places:
    """As `INT8`, by roles, of the operators of other frameworks. A product with a weight is what `linear` is in PyTorch."""
    products: Mapping[int | str, MakeObserver] = {**_WEIGHTED, "left": int8_activation, "right": int8_activation}
    convolutions = [word for word in WEIGHTED if word.startswith(("conv1d", "conv2d", "conv3d", "depthwise"))]
    by_name = dict.fromkeys(names_of(*convolutions), _WEIGHTED) | dict.fromkeys(names_of("matmul"), products)
    return {name: places for name, places in by_name.items() if not name.startswith("aten::")}
