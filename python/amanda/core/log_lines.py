"""The lines that the core logs."""

from __future__ import annotations

import logging

from amanda.driver.identity import cells


def write(line: str) -> None:
    """Writes a line to the log. The core knows cells by their files only."""
    logging.getLogger("amanda").warning(cells.in_text(line))
