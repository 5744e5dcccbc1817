"""Tools that ship with Amanda."""
