"""Pruning: operators run, and train, without some of their weights, activations, channels, heads or tokens."""

from typing import TYPE_CHECKING

from amanda.reports.places import GroupBy
from amanda.tools import _deferred
from amanda.tools.pruning.magnitude import MagnitudePruning
from amanda.tools.pruning.masked import Row
from amanda.tools.pruning.sparsity_schedule import SparsitySchedule
from amanda.tools.pruning.vectorwise import VectorwisePruning
from amanda.tools.pruning.weight_pruning import OPS, WeightPruning

if TYPE_CHECKING:
    from amanda.tools.pruning.activation import RECTIFIERS, ActivationPruning, ActivationRow
    from amanda.tools.pruning.attention import AttentionPruning, Kept, Layer, LayerRow
    from amanda.tools.pruning.cascade import CascadePruning
    from amanda.tools.pruning.channel import ChannelPruning, ChannelRow
    from amanda.tools.pruning.heads import HeadPruning
    from amanda.tools.pruning.tilewise import TilewisePruning
else:  # these import PyTorch
    __getattr__ = _deferred.imports(
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
