"""Ranges of quantized operands, and an operand that has one."""

import itertools

from amanda.reports.places import Place
from amanda.tools.quantization import MovingRange
from amanda.tools.quantization.rows import OperandPlace

AT = OperandPlace(Place(1, "aten::linear", "", "model.py:1"), "input", "input")
RANGES = [
    MovingRange(quant_min=low, quant_max=high, symmetric=symmetric, by_channel=by_channel, averaging_constant=share)
    for (low, high, share), symmetric, by_channel in itertools.product(
        [(0, 255, 0.01), (-128, 127, 0.3), (0, 15, 0.1)], [False, True], [False, True]
    )
]
