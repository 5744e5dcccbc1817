"""Arguments: checks of what users give to tools."""

from amanda.reports.arguments import check_choice, whole_number

__all__ = ["check_choice", "whole_number"]
