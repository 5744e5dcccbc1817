"""Quantization: operators run, and train, on operands that are rounded to a few bits."""

from amanda.tools.quantization.fake_quantization import FakeQuantization, GroupBy, Row, Side
from amanda.tools.quantization.observers import INT8, MakeObserver, Places, int8_activation, int8_weight

__all__ = [
    "INT8",
    "FakeQuantization",
    "GroupBy",
    "MakeObserver",
    "Places",
    "Row",
    "Side",
    "int8_activation",
    "int8_weight",
]
