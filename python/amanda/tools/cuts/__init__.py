"""GradientCuts: which parameters get no gradient, and where their path to the loss ends."""

from .cut import Cut, Finding, named
from .gradient_cuts import GradientCuts
from .rows import GroupBy, Row

__all__ = ["Cut", "Finding", "GradientCuts", "GroupBy", "Row", "named"]
