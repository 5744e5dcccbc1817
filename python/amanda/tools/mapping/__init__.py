"""Mapping: one vocabulary for the operators of several frameworks."""

from .mapping_tool import MappingTool, Rule
from .rules import keys_of, standard_rules, vocabulary
from .words import Word, names_of, present, roles, words

__all__ = [
    "MappingTool",
    "Rule",
    "Word",
    "keys_of",
    "names_of",
    "present",
    "roles",
    "standard_rules",
    "vocabulary",
    "words",
]
