"""How to learn which operator wrote."""

from __future__ import annotations

import os
import shlex
import sys

_LONGEST = 100  # command line in a note


def unrecorded() -> str:
    """The text for an error of a backward pass where no tool has recorded writes."""
    return (
        f"which operator wrote was not recorded; `{command()}` names it, and so does "
        "amanda.tools.inplace.InplaceErrors() in a scope around the forward and the backward pass"
    )


def command() -> str:
    """The command that records which operators write, for this program."""
    script = sys.argv[0] if sys.argv else ""
    if not script.endswith(".py") or os.path.basename(script) == "__main__.py":
        return "amanda inplace script.py"
    whole = shlex.join(["amanda", "inplace", *sys.argv])
    return whole if len(whole) <= _LONGEST else f"amanda inplace {shlex.quote(script)} ..."
