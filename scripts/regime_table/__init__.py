"""The operators that each shipped tool looks at, by regime: its own evidence after a program of that regime has run."""
