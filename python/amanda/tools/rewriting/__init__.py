"""Rewriting: several operators of a program run as one function."""

from .pattern import Operands, Pattern
from .subgraph_rewriting import GroupBy, Row, SubgraphRewriting

__all__ = ["GroupBy", "Operands", "Pattern", "Row", "SubgraphRewriting"]
