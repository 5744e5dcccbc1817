"""What each shipped tool looks at, by regime: what its own evidence says after a program of that regime has run."""
