"""export_diff: which nodes of an ONNX file compute something else than the program that was exported."""

from .export_diff import ExportDiff
from .rows import Form, GroupBy, Row, Unmatched

__all__ = ["ExportDiff", "Form", "GroupBy", "Row", "Unmatched"]
