"""A file of tensors: it is complete, or it is not there. Needs safetensors: import it where one is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

__all__ = ["write"]


def write(speaker: str, path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors by name.

    Arguments:
        speaker: the tool's name in messages.
        tensors: contiguous, each with memory of its own.

    Raises:
        OSError: it cannot be written: the disk is full, for instance.
    """
    partial = path.with_suffix(".partial")
    try:
        save_file(dict(tensors), partial, dict(metadata) if metadata else None)
        partial.replace(path)
    except SafetensorError as error:  # also what the system refuses
        raise OSError(f"[{speaker}] can't write {str(path)!r}: {error}; what was written before can be read") from error
    finally:
        partial.unlink(missing_ok=True)
