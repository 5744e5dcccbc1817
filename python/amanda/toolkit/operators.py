"""Operators: whether one of a name can run, the access of routines to its results, and the origins of a graph's values."""

from amanda.driver.op_names import complaint
from amanda.driver.protocol import Access, Origin
from amanda.driver.registry import access_to, origins_of

__all__ = ["Access", "Origin", "access_to", "complaint", "origins_of"]
