"""Where tests find the repository's other folders."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def environment() -> dict[str, str]:
    """For programs that import the files in this folder."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
