"""Pruning: operators run, and train, without some of their weights."""

from amanda.tools.pruning.magnitude import MagnitudePruning
from amanda.tools.pruning.vectorwise import VectorwisePruning
from amanda.tools.pruning.weight_pruning import OPS, GroupBy, Row, WeightPruning

__all__ = ["OPS", "GroupBy", "MagnitudePruning", "Row", "VectorwisePruning", "WeightPruning"]
