"""Pruning: operators run, and train, without some of their weights. `amanda.research.pruning` has more of it."""

from typing import TYPE_CHECKING

from amanda import moved
from amanda.reports.places import GroupBy
from amanda.tools.pruning.magnitude import MagnitudePruning
from amanda.tools.pruning.masked import Row
from amanda.tools.pruning.sparsity_schedule import SparsitySchedule
from amanda.tools.pruning.vectorwise import VectorwisePruning
from amanda.tools.pruning.weight_pruning import OPS, WeightPruning

if not TYPE_CHECKING:
    __getattr__ = moved.names_of(__name__)

__all__ = [
    "OPS",
    "GroupBy",
    "MagnitudePruning",
    "Row",
    "SparsitySchedule",
    "VectorwisePruning",
    "WeightPruning",
]
