"""What the site is built with, where it is installed."""

import importlib.util
import shutil

import pytest

needs_doxygen = pytest.mark.skipif(
    shutil.which("doxygen") is None, reason="doxygen is not installed; scripts/setup.sh docs"
)
needs_sphinx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("sphinx", "breathe", "furo", "myst_nb")),
    reason="docs/requirements.txt is not installed; scripts/setup.sh docs",
)
