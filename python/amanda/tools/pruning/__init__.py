"""Pruning: operators run, and train, without some of their weights. `amanda.research.pruning` has more of it."""

from typing import TYPE_CHECKING

from amanda.toolkit import deferred
from amanda.toolkit.places import GroupBy

from .magnitude import MagnitudePruning
from .masked import Row
from .sparsity_schedule import SparsitySchedule
from .vectorwise import VectorwisePruning
from .weight_pruning import OPS, WeightPruning

if not TYPE_CHECKING:
    __getattr__ = deferred.imports(__name__)

__all__ = [
    "OPS",
    "GroupBy",
    "MagnitudePruning",
    "Row",
    "SparsitySchedule",
    "VectorwisePruning",
    "WeightPruning",
]
