"""A compiled function's graphs, forward and backward, as one program."""
