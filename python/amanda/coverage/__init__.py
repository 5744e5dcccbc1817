"""What a scope's tools see of a program, and why the rest is skipped."""
