"""Figures: the charts and listings that a tool shows on pages."""

from amanda.reports.sections import (
    MOST_BARS,
    Curve,
    Icicle,
    Listing,
    Section,
    Table,
    Text,
    Timeline,
    icicle_of,
    table_of,
)

__all__ = [
    "MOST_BARS",
    "Curve",
    "Icicle",
    "Listing",
    "Section",
    "Table",
    "Text",
    "Timeline",
    "icicle_of",
    "table_of",
]
