"""Pruning: operators run, and train, without some of their activations, channels, heads, tokens or rows of tiles."""

from amanda.research.pruning.activation import RECTIFIERS, ActivationPruning, ActivationRow
from amanda.research.pruning.attention import AttentionPruning, Kept, Layer, LayerRow
from amanda.research.pruning.cascade import CascadePruning
from amanda.research.pruning.channel import ChannelPruning, ChannelRow
from amanda.research.pruning.heads import HeadPruning
from amanda.research.pruning.tilewise import TilewisePruning
from amanda.toolkit.places import GroupBy

__all__ = [
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
    "TilewisePruning",
]
