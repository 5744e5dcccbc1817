"""Graphs as the core sees them: operators, places, gradients."""
