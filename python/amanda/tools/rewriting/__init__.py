"""Rewriting: several operators of a program run as one function."""

from amanda.tools.rewriting.pattern import Operands, Pattern
from amanda.tools.rewriting.subgraph_rewriting import GroupBy, Row, SubgraphRewriting

__all__ = ["GroupBy", "Operands", "Pattern", "Row", "SubgraphRewriting"]
