"""Places: operators of a program, and how tools group their rows by them."""

from amanda.reports.place_rows import add_up, counted_groupings, grouped, place_groupings
from amanda.reports.places import PLACE_FIELDS, GroupBy, Place, PlaceRow

__all__ = ["PLACE_FIELDS", "GroupBy", "Place", "PlaceRow", "add_up", "counted_groupings", "grouped", "place_groupings"]
