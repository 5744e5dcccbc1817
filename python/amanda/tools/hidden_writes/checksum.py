"""A checksum of memory. Imports torch."""

from __future__ import annotations

import ctypes
import zlib
from typing import Any

import torch

_WORDS = 1 << 20  # of a part that is computed at once, on devices
_ODD = 0x1E3779B97F4A7C15
_weights: dict[torch.device, torch.Tensor] = {}


def can_be_read(storage: Any) -> bool:
    """False while a CUDA graph is captured: reading waits for the device, which ends the capture."""
    return storage.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def of(storage: Any) -> int:
    """The checksum of all bytes. It waits for the device."""
    if storage.nbytes() == 0:
        return 0
    return on_cpu(storage) if storage.device.type == "cpu" else on_device(storage)


def on_cpu(storage: Any) -> int:
    return zlib.crc32((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()))


def on_device(storage: Any) -> int:
    """Each word counts with a weight of its own, which is odd: a change of one word always shows, and an exchange of two
    does."""
    device, count = storage.device, storage.nbytes()
    data = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    weights = _weights.get(device)
    if weights is None:
        weights = _weights[device] = torch.arange(_WORDS, device=device).mul_(2).add_(1).mul_(_ODD)
    total = torch.zeros((), dtype=torch.int64, device=device)
    words = data[: count // 8 * 8].view(torch.int64)
    for part in words.split(_WORDS):
        total.mul_(_ODD).add_((part * weights[: len(part)]).sum())
    rest = data[count // 8 * 8 :].to(torch.int64)
    return int(total.mul_(_ODD).add_((rest * weights[: len(rest)]).sum()).item())
