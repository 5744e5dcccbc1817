"""Pruning: operators run, and train, without some of their weights, channels, heads or tokens."""

from amanda.tools.pruning.magnitude import MagnitudePruning
from amanda.tools.pruning.vectorwise import VectorwisePruning
from amanda.tools.pruning.weight_pruning import OPS, GroupBy, Row, WeightPruning

__all__ = ["OPS", "GroupBy", "MagnitudePruning", "Row", "VectorwisePruning", "WeightPruning"]

# What depends on the input.
from amanda.tools.pruning.attention import AttentionPruning, Kept, Layer, LayerRow
from amanda.tools.pruning.cascade import CascadePruning
from amanda.tools.pruning.channel import ChannelPruning, ChannelRow
from amanda.tools.pruning.heads import HeadPruning

__all__ += [
    "AttentionPruning",
    "CascadePruning",
    "ChannelPruning",
    "ChannelRow",
    "HeadPruning",
    "Kept",
    "Layer",
    "LayerRow",
]
