"""Operators: whether one of a name can run, the words that stand for it, the access of routines to its results, and the
origins of a graph's values."""

from amanda.driver.op_names import complaint
from amanda.driver.protocol import Access, Origin, VariableValue
from amanda.driver.registry import access_to, is_array, origins_of, variable_of, vocabularies, vocabulary_of
from amanda.driver.vocabulary import WEIGHTED, Roles, Vocabulary

__all__ = [
    "WEIGHTED",
    "Access",
    "Origin",
    "Roles",
    "VariableValue",
    "Vocabulary",
    "access_to",
    "complaint",
    "is_array",
    "origins_of",
    "variable_of",
    "vocabularies",
    "vocabulary_of",
]
