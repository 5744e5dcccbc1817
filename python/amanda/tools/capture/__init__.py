"""Capture and Patch: results of chosen operators kept from one run, and put into another."""

from amanda.tools.capture.capture import Capture
from amanda.tools.capture.captured import Captured, Value, load
from amanda.tools.capture.names import Naming, ResultName, result_names
from amanda.tools.capture.patch import Patch
from amanda.tools.capture.rows import GroupBy, Row
from amanda.tools.capture.transformer_lens import TRANSFORMER_LENS_GPT2

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
