"""Capture and Patch: results of chosen operators kept from one run, and put into another."""

from .capture import Capture
from .captured import Captured, Value, load
from .names import Naming, ResultName, result_names
from .patch import Patch
from .rows import GroupBy, Row
from .transformer_lens import TRANSFORMER_LENS_GPT2

__all__ = [
    "TRANSFORMER_LENS_GPT2",
    "Capture",
    "Captured",
    "GroupBy",
    "Naming",
    "Patch",
    "ResultName",
    "Row",
    "Value",
    "load",
    "result_names",
]
