"""What a finding tells of PyTorch's tensors. Imports torch: import it where an operator ran."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from amanda.tools._arrays import Arrays
from amanda.tools.nonfinite.finding import Operand, flattened

MOST_SAVED = 8  # operands that a backward operator's finding lists beside the gradients


def nonfinite(array: Any, inf: bool) -> Any:
    """A tensor of one bool, where the array is: does it have a NaN (with `inf` an infinity, too)?"""
    if not (array.is_floating_point() or array.is_complex()):
        return torch.zeros((), dtype=torch.bool, device=array.device)
    values = array if array.is_complex() or array.element_size() > 1 else array.to(torch.float32)  # float8
    return torch.isnan(values).any() if not inf else ~torch.isfinite(values).all()


def number_is_nonfinite(value: Any, inf: bool) -> bool:
    return isinstance(value, float) and (math.isnan(value) or (inf and math.isinf(value)))


def described(name: str, value: Any, elements: bool) -> Operand | None:
    """None: it is no tensor and no float."""
    if isinstance(value, float):
        finite = value if math.isfinite(value) else None
        counts = int(math.isnan(value)), int(math.isinf(value)), int(value == 0)
        return Operand(name, "float", (), "cpu", 1, *counts, finite, finite)
    if not isinstance(value, torch.Tensor):
        return None
    head = name, str(value.dtype).removeprefix("torch."), tuple(map(int, value.shape)), str(value.device), value.numel()
    if not elements:
        return Operand(*head, None, None, None, None, None)
    zeros = int(torch.count_nonzero(value == 0))
    if value.is_complex() or not value.is_floating_point():
        return Operand(*head, int(torch.isnan(value).sum()), int(torch.isinf(value).sum()), zeros, None, None)
    values = value.detach().to(torch.float64)
    finite = values[torch.isfinite(values)]
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (None, None)
    return Operand(*head, int(torch.isnan(values).sum()), int(torch.isinf(values).sum()), zeros, low, high)


def saved() -> Iterator[tuple[str, Any]]:
    """What the autograd node that runs on this thread has saved, by name. What the program packs by hooks of its own, as
    checkpointing does, is left out: these hooks must not run once more."""
    node = torch._C._current_autograd_node()
    for name in [name for name in dir(node) if name.startswith("_raw_saved_")][:MOST_SAVED]:
        kept = getattr(node, name)
        try:
            value = kept.data
        except Exception:  # freed
            continue
        if isinstance(value, torch.Tensor):
            yield f"saved {name.removeprefix('_raw_saved_')}", value


class Uninitialized:
    """Memory that was allocated without values: what is in it there came from nowhere."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}

    def add(self, values: Sequence[Any]) -> None:
        if len(self._storages) >= 256:
            self._storages = {key: kept for key, kept in self._storages.items() if not kept.expired()}
        for value in flattened(values):
            if isinstance(value, torch.Tensor):
                kept = StorageWeakRef(value.untyped_storage())
                self._storages[kept.cdata] = kept

    def has(self, value: Any) -> bool:
        if not self._storages or not isinstance(value, torch.Tensor):
            return False
        kept = self._storages.get(value.untyped_storage()._cdata)
        return kept is not None and not kept.expired()


def is_on_cpu(values: Any) -> bool:
    return all(value.device.type == "cpu" for value in flattened(values) if isinstance(value, torch.Tensor))


def read(value: Any, inf: bool) -> Any:
    """For `Skips.read`."""

    def function(array: Any, arrays: Arrays) -> Any:
        return nonfinite(array, inf)

    return function


def all_flags(flags: Sequence[Any]) -> list[bool]:
    """Waits for the devices."""
    by_device: dict[Any, list[int]] = {}
    for i, flag in enumerate(flags):
        by_device.setdefault(flag.device, []).append(i)
    found = [False] * len(flags)
    for positions in by_device.values():
        for i, value in zip(positions, torch.stack([flags[i] for i in positions]).tolist(), strict=True):
            found[i] = value
    return found


def either(flags: Sequence[Any]) -> Any:
    """On the device of the first."""
    result = flags[0]
    for flag in flags[1:]:
        result = result | flag.to(result.device, non_blocking=True)
    return result


def none_of(device: Any) -> Any:
    return torch.zeros((), dtype=torch.bool, device=device)
