"""Ids of operators in compiled functions: the same as in eager mode."""
