"""Notebooks: HTML of tables and texts for `_repr_html_`, without scripts, on light and dark."""

from amanda.reports.notebook import code, heading, remark, table, text, together

__all__ = ["code", "heading", "remark", "table", "text", "together"]
