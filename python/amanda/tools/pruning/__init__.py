"""Pruning: operators run, and train, without some of their weights, activations, channels, heads or tokens."""

from typing import TYPE_CHECKING

from amanda.toolkit import deferred
from amanda.toolkit.places import GroupBy

from .magnitude import MagnitudePruning
from .masked import Row
from .sparsity_schedule import SparsitySchedule
from .vectorwise import VectorwisePruning
from .weight_pruning import OPS, WeightPruning

if TYPE_CHECKING:
    from .activation import RECTIFIERS, ActivationPruning, ActivationRow
    from .attention import AttentionPruning, Kept, Layer, LayerRow
    from .cascade import CascadePruning
    from .channel import ChannelPruning, ChannelRow
    from .heads import HeadPruning
    from .tilewise import TilewisePruning
else:  # these import PyTorch
    __getattr__ = deferred.imports(
        __name__,
        activation=("RECTIFIERS", "ActivationPruning", "ActivationRow"),
        attention=("AttentionPruning", "Kept", "Layer", "LayerRow"),
        cascade=("CascadePruning",),
        channel=("ChannelPruning", "ChannelRow"),
        heads=("HeadPruning",),
        tilewise=("TilewisePruning",),
    )

__all__ = [
    "OPS",
    "RECTIFIERS",
    "ActivationPruning",
    "ActivationRow",
    "AttentionPruning",
    "CascadePruning",
    "ChannelPruning",
    "ChannelRow",
    "GroupBy",
    "HeadPruning",
    "Kept",
    "Layer",
    "LayerRow",
    "MagnitudePruning",
    "Row",
    "SparsitySchedule",
    "TilewisePruning",
    "VectorwisePruning",
    "WeightPruning",
]
