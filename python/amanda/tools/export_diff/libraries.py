"""The libraries that read and run ONNX files. They are optional: the extra `onnx` installs them."""

from __future__ import annotations

from typing import Any


def onnx() -> Any:
    """The module. Raises `ImportError`: it is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise _missing(error) from error
    return onnx


def onnxruntime() -> Any:
    """The module. Raises `ImportError`: it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise _missing(error) from error
    return onnxruntime


def _missing(error: ImportError) -> ImportError:
    return ImportError(f"[export_diff] needs onnx and onnxruntime: pip install 'amanda-nn[onnx]' ({error})")
