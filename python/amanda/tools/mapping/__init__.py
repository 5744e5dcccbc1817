"""Mapping: one vocabulary for the operators of several frameworks."""

from amanda.tools.mapping.mapping_tool import MappingTool, Rule
from amanda.tools.mapping.rules import STANDARD_RULES, vocabulary
from amanda.tools.mapping.words import VOCABULARY, Word, names_of

__all__ = ["STANDARD_RULES", "VOCABULARY", "MappingTool", "Rule", "Word", "names_of", "vocabulary"]
