"""Quantization: operators run, and train, on operands that are rounded to a few bits."""

from amanda.tools.quantization.dynamic_quantization import DynamicQuantization
from amanda.tools.quantization.fake_quantization import FakeQuantization
from amanda.tools.quantization.learned_step import LearnedStepQuantization
from amanda.tools.quantization.observers import (
    INT8,
    MakeObserver,
    PercentileObserver,
    Places,
    int8_activation,
    int8_weight,
)
from amanda.tools.quantization.post_training import PostTraining
from amanda.tools.quantization.rows import GroupBy, Quantization, Row, Side
from amanda.tools.quantization.static_quantization import StaticQuantization

__all__ = [
    "INT8",
    "DynamicQuantization",
    "FakeQuantization",
    "GroupBy",
    "LearnedStepQuantization",
    "MakeObserver",
    "PercentileObserver",
    "Places",
    "PostTraining",
    "Quantization",
    "Row",
    "Side",
    "StaticQuantization",
    "int8_activation",
    "int8_weight",
]
