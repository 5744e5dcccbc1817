"""Figures: the charts and listings that a tool shows on pages, and the pages."""

from amanda.reports.html_page import HtmlPage
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
    "HtmlPage",
    "Icicle",
    "Listing",
    "Section",
    "Table",
    "Text",
    "Timeline",
    "icicle_of",
    "table_of",
]
