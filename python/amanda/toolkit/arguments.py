"""Arguments: checks of what users give to tools."""

from amanda.core.keywords import refuse as refuse_option
from amanda.reports.arguments import check_choice, whole_number

__all__ = ["check_choice", "refuse_option", "whole_number"]
