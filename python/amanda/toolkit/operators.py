"""Operators: whether one of a name can run, the access of routines to its results, and the origins of a graph's values."""

from amanda.drivers import Access, Origin, access_to, origins_of
from amanda.drivers.op_names import complaint

__all__ = ["Access", "Origin", "access_to", "complaint", "origins_of"]
