"""Frames: the Python calls around an operator, and the source files and lines that they are in."""

import os

from amanda.driver.identity.cells import line_in_cell
from amanda.driver.identity.frames import line_of, outwards
from amanda.reports.source_files import is_library, line_of_code, short_line, split_line

PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""The folder of Amanda's own files, which begins their paths."""

__all__ = ["PACKAGE", "is_library", "line_in_cell", "line_of", "line_of_code", "outwards", "short_line", "split_line"]
