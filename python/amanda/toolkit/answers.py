"""Answers: words for the sentences that a tool says before its table."""

from amanda.reports.answers import code_of, folded, main_part, ordinal, pattern_of, percent, seconds, size

__all__ = ["code_of", "folded", "main_part", "ordinal", "pattern_of", "percent", "seconds", "size"]
