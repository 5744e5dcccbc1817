"""Mapping: one vocabulary for the operators of several frameworks."""

from .mapping_tool import MappingTool, Rule
from .rules import keys_of, standard_rules, vocabulary
from .words import Word, names_of, roles, weighted_operators, words

__all__ = [
    "MappingTool",
    "Rule",
    "Word",
    "keys_of",
    "names_of",
    "roles",
    "standard_rules",
    "vocabulary",
    "weighted_operators",
    "words",
]
