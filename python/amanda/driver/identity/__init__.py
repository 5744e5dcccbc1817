"""Names of places in a program, for all drivers; independent of frameworks."""
