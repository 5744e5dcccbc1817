"""What names of places in a program are made of, for the drivers: knows no framework."""
