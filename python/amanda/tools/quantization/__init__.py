"""Quantization: operators run, and train, on operands that are rounded to a few bits."""

from typing import TYPE_CHECKING

from amanda.toolkit import deferred

from .fake_quantization import FakeQuantization
from .ranges import INT8, MakeObserver, MovingRange, Places, int8_activation, int8_weight
from .rows import GroupBy, Quantization, Row, Side

if TYPE_CHECKING:
    from .dynamic_quantization import DynamicQuantization
    from .observers import PercentileObserver
    from .post_training import PostTraining
    from .static_quantization import StaticQuantization
else:  # these import PyTorch
    __getattr__ = deferred.imports(
        __name__,
        dynamic_quantization=("DynamicQuantization",),
        observers=("PercentileObserver",),
        post_training=("PostTraining",),
        static_quantization=("StaticQuantization",),
    )

__all__ = [
    "INT8",
    "DynamicQuantization",
    "FakeQuantization",
    "GroupBy",
    "MakeObserver",
    "MovingRange",
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
