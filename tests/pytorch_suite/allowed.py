"""The tests of PyTorch that may end differently in a scope: a pattern for their names, and why."""

import fnmatch

ALLOWED: dict[str, str] = {}


def reason_for(test: str) -> str | None:
    """Why this test may differ; None, if it may not."""
    return next((reason for pattern, reason in ALLOWED.items() if fnmatch.fnmatchcase(test, pattern)), None)
