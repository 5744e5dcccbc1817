"""Mapping: one vocabulary for the operators of several frameworks."""

from .mapping_tool import MappingTool, Rule
from .rules import STANDARD_RULES, keys_of, vocabulary
from .words import ROLES, VOCABULARY, Word, names_of, tensorflow_names

__all__ = [
    "ROLES",
    "STANDARD_RULES",
    "VOCABULARY",
    "MappingTool",
    "Rule",
    "Word",
    "keys_of",
    "names_of",
    "tensorflow_names",
    "vocabulary",
]
