"""What `leak_runs` sets before a program of `leaks/` runs: whether it leaks, and its steps."""

from __future__ import annotations

from collections.abc import Iterable

LEAK = True
STEPS: Iterable[int] = range(10)
