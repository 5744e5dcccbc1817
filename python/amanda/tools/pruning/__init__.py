"""Pruning: operators run, and train, without some of their weights, activations, channels, heads or tokens."""

from amanda.reports.places import GroupBy
from amanda.tools.pruning.activation import RECTIFIERS, ActivationPruning, ActivationRow
from amanda.tools.pruning.attention import AttentionPruning, Kept, Layer, LayerRow
from amanda.tools.pruning.cascade import CascadePruning
from amanda.tools.pruning.channel import ChannelPruning, ChannelRow
from amanda.tools.pruning.heads import HeadPruning
from amanda.tools.pruning.magnitude import MagnitudePruning
from amanda.tools.pruning.sparsity_schedule import SparsitySchedule
from amanda.tools.pruning.tilewise import TilewisePruning
from amanda.tools.pruning.vectorwise import VectorwisePruning
from amanda.tools.pruning.weight_pruning import OPS, Row, WeightPruning

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
