"""Pruning: operators run, and train, without some of their weights or activations."""

from amanda.reports.places import GroupBy
from amanda.tools.pruning.activation import RECTIFIERS, ActivationPruning, ActivationRow
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
    "GroupBy",
    "MagnitudePruning",
    "Row",
    "SparsitySchedule",
    "TilewisePruning",
    "VectorwisePruning",
    "WeightPruning",
]
