"""Kept: the elements of a tensor of the program, as numpy's, and the key that identifies them."""

from __future__ import annotations

import hashlib
import tempfile
from typing import Any, NamedTuple

import numpy as np

IN_MEMORY = 1 << 30  # bytes of references that stay in memory; others go to a file that has no name

Array = np.ndarray[Any, Any]
Key = tuple[str, bytes]


class Kept(NamedTuple):
    """A tensor. `flat` has its elements in order; bfloat16 is float32 there, which has all its values."""

    key: Key  # equal for equal elements of a dtype, in whatever shape: a view has the key of its source
    dtype: str
    shape: tuple[int, ...]
    flat: Array

    @property
    def array(self) -> Array:
        return self.flat.reshape(self.shape)


class Store:
    """Keeps tensors, each content once."""

    def __init__(self) -> None:
        self._known: dict[Key, Array] = {}
        self._bytes = 0
        self._file: Any = None

    def kept(self, tensor: Any) -> Kept:
        """`tensor`: can be read."""
        flat, key = _flat_and_key(tensor)
        if key not in self._known:
            self._known[key] = self._stored(_as_numpy(flat))
        return Kept(key, key[0], tuple(tensor.shape), self._known[key])

    def _stored(self, array: Array) -> Array:
        self._bytes += array.nbytes
        if self._bytes <= IN_MEMORY or not array.nbytes:
            return array.copy()
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the arrays in it
        start = self._file.seek(0, 2)
        self._file.write(array.data)
        self._file.flush()
        return np.memmap(self._file, array.dtype, "r", start, array.shape)


def key_of(tensor: Any) -> Key:
    return _flat_and_key(tensor)[1]


def _flat_and_key(tensor: Any) -> tuple[Any, Key]:
    import torch

    flat = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous().flatten()
    data = memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b""
    return flat, (str(tensor.dtype).removeprefix("torch."), hashlib.blake2b(data, digest_size=16).digest())


def _as_numpy(flat: Any) -> Array:
    import torch

    array: Array = (flat.float() if flat.dtype == torch.bfloat16 else flat).numpy()
    return array
