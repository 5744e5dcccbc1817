"""Graphs as the core sees them."""
