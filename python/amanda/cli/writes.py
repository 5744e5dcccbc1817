"""Commands that look for what is wrong also explain PyTorch's error "modified by an inplace operation"."""

from __future__ import annotations

import argparse

from amanda.cli import program_arguments
from amanda.core.scope import Scope, apply
from amanda.tools.inplace.write_recorder import WriteRecorder


def recorded(given: argparse.Namespace) -> Scope:
    """A second scope, around that of the command's own tools. It has routines at operators that write."""
    return apply(WriteRecorder(), **program_arguments.options(given))
