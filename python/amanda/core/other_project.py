"""The warning about the project `amanda` of PyPI, which is another one and installs a command of the same name."""

from __future__ import annotations

import glob
import os
import sys
import warnings


def warn() -> None:
    """Warns if the other project is installed where this process looks for packages."""
    for folder in dict.fromkeys(map(str, sys.path)):  # programs append paths of other types
        if folder.endswith("-packages") and glob.glob(os.path.join(glob.escape(folder), "amanda-[0-9]*.dist-info")):
            warnings.warn(
                f"[import] another project named 'amanda' is installed in {folder}, and its command `amanda` replaces this "
                "one's; this project is amanda-nn: pip uninstall amanda, then pip install --force-reinstall --no-deps "
                "amanda-nn",
                stacklevel=2,
            )
