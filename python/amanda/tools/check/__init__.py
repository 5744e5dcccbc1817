"""Check: rules that find mistakes in a running program, such as gradients that are not cleared."""

from .check import Check
from .finding import Finding
from .rule import Rule, Step
from .rules import RULES

__all__ = ["RULES", "Check", "Finding", "Rule", "Step"]
