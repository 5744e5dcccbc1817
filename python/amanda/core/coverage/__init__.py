"""The calls of a program that a scope's tools see, and the reasons why the others are skipped."""
