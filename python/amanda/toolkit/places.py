"""Places: operators of a program, and how tools group their rows by them."""

from amanda.reports.places import PLACE_FIELDS, GroupBy, Place

__all__ = ["PLACE_FIELDS", "GroupBy", "Place"]
