"""A file of tensors: it is complete, or it is not there. Needs safetensors: import it where one is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file as save_arrays

__all__ = ["write"]


def write(speaker: str, path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Writes tensors of PyTorch, or arrays of numpy, by name.

    Arguments:
        speaker: the tool's name in messages.
        tensors: each with memory of its own.

    Raises:
        OSError: it cannot be written: the disk is full, for instance.
    """
    partial = path.with_suffix(".partial")
    about = dict(metadata) if metadata else None
    try:
        if all(isinstance(each, np.ndarray) for each in tensors.values()):
            save_arrays({name: np.ascontiguousarray(each) for name, each in tensors.items()}, partial, about)
        else:
            from safetensors.torch import save_file

            save_file({name: each.contiguous() for name, each in tensors.items()}, partial, about)
        partial.replace(path)
    except SafetensorError as error:  # also what the system refuses
        raise OSError(f"[{speaker}] can't write {str(path)!r}: {error}; what was written before can be read") from error
    finally:
        partial.unlink(missing_ok=True)
