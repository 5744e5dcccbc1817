"""Flops: floating point operations of every operator run, forward and backward, per operator type and module."""

from .flops import Flops, GroupBy, Row

__all__ = ["Flops", "GroupBy", "Row"]
