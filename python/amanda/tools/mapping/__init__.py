"""Mapping: one vocabulary for the operators of several frameworks."""

from amanda.tools.mapping.mapping_tool import MappingTool, Rule
from amanda.tools.mapping.rules import STANDARD_RULES, keys_of, vocabulary
from amanda.tools.mapping.words import ROLES, VOCABULARY, Word, names_of, tensorflow_names

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
