"""Actions become nodes of a graph."""
