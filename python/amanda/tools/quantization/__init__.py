"""Quantization: operators run, and train, on operands that are rounded to a few bits."""

from typing import TYPE_CHECKING

from amanda import moved
from amanda.tools import _deferred
from amanda.tools.quantization.fake_quantization import FakeQuantization
from amanda.tools.quantization.ranges import INT8, MakeObserver, MovingRange, Places, int8_activation, int8_weight
from amanda.tools.quantization.rows import GroupBy, Quantization, Row, Side

if TYPE_CHECKING:
    from amanda.tools.quantization.dynamic_quantization import DynamicQuantization
    from amanda.tools.quantization.observers import PercentileObserver
    from amanda.tools.quantization.post_training import PostTraining
    from amanda.tools.quantization.static_quantization import StaticQuantization
else:  # these import PyTorch
    __getattr__ = moved.names_of(
        __name__,
        _deferred.imports(
            __name__,
            dynamic_quantization=("DynamicQuantization",),
            observers=("PercentileObserver",),
            post_training=("PostTraining",),
            static_quantization=("StaticQuantization",),
        ),
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
