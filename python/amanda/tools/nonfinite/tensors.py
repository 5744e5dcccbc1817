"""The facts in a finding about PyTorch's tensors. Imports torch: import it where an operator ran."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from amanda.toolkit.arrays import Arrays, of_torch
from amanda.toolkit.torch import StorageWeakRef, WeakTensorRef, current_node, is_functional

from .finding import Operand, flattened

MOST_SAVED = 8  # operands that a backward operator's finding lists in addition to the gradients


def nonfinite(array: Any, inf: bool) -> Any:
    """A tensor of one bool, on the array's device: true if it has a NaN, or with `inf` an infinity."""
    if not (array.is_floating_point() or array.is_complex()):
        return torch.zeros((), dtype=torch.bool, device=array.device)
    values = array if array.is_complex() or array.element_size() > 1 else array.to(torch.float32)  # float8
    return torch.isnan(values).any() if not inf else ~torch.isfinite(values).all()


def described(name: str, value: Any, elements: bool) -> Operand | None:
    """A description of a value. None if it is no tensor and no float. A tensor that can't be read has no counts."""
    if isinstance(value, float):
        finite = value if math.isfinite(value) else None
        counts = int(math.isnan(value)), int(math.isinf(value)), int(value == 0)
        return Operand(name, "float", (), "cpu", 1, *counts, finite, finite)
    if not isinstance(value, torch.Tensor):
        return None
    with of_torch.quietly():
        readable = of_torch.why_unreadable(value) is None
        plain = of_torch.plain(value) if readable else value
        shape = _shape(plain)
        head = name, str(plain.dtype).removeprefix("torch."), shape, str(plain.device), math.prod(shape)
        if readable and elements:
            with contextlib.suppress(Exception):  # its dtype has no such kernels
                return Operand(*head, *_counts(plain.detach()))
    return Operand(*head, None, None, None, None, None)


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape of a tensor. It is empty for a nested tensor, whose shape has no numbers."""
    try:
        return tuple(map(int, tensor.shape))
    except Exception:
        return ()


def _counts(values: torch.Tensor) -> tuple[int, int, int, float | None, float | None]:
    """NaNs, infinities and zeros, and the range of the finite elements of a real tensor."""
    real = values.is_floating_point()
    values = values.to(torch.float64) if real else values
    counts = int(torch.isnan(values).sum()), int(torch.isinf(values).sum()), int((values == 0).sum())
    finite = values[torch.isfinite(values)] if real else None
    if finite is None or not finite.numel():
        return *counts, None, None
    return *counts, finite.min().item(), finite.max().item()


def saved() -> tuple[list[tuple[str, Any]], list[str]]:
    """The tensors that the autograd node running on this thread has saved, by name; and the names of those that the
    program packs by hooks of its own, as checkpointing does: these hooks must not run once more."""
    node = current_node()
    shown, packed = [], []
    for raw in [name for name in dir(node) if name.startswith("_raw_saved_")][:MOST_SAVED]:
        kept, name = getattr(node, raw), f"saved {raw.removeprefix('_raw_saved_')}"
        try:
            value = kept.data
        except Exception:  # freed
            continue
        if isinstance(value, torch.Tensor):
            shown.append((name, value))
        elif value is not None:
            packed.append(name)
    return shown, packed


ALONE = 2  # references to an operand that only a routine's arguments hold, as `sys.getrefcount` counts


def constants(names: Sequence[Any], inputs: Sequence[Any]) -> set[str]:
    """The inputs that the program wrote as numbers, as in ``x[0] = nan``: PyTorch makes tensors of them, which the program
    does not have. `inputs`: as a routine gets it, and nothing else refers to its members."""
    return {
        f"input {name}"
        for i, name in enumerate(names[: len(inputs)])
        if sys.getrefcount(inputs[i]) <= ALONE and _is_number(inputs[i])
    }


def _is_number(value: Any) -> bool:
    """True if the value could be a number that the program wrote."""
    if (
        type(value) is not torch.Tensor
        or value.layout is not torch.strided
        or value.dim()
        or value.device.type != "cpu"
    ):
        return False
    return (
        value.grad_fn is None
        and not of_torch.is_transformed(value)
        and value.untyped_storage().nbytes() == value.itemsize
    )


def flags(named: Sequence[tuple[str, Any]], inf: bool) -> list[torch.Tensor]:
    """The flags of the tensors that can be read; see `nonfinite`. Counts nothing."""
    found = []
    for one in flattened([value for _, value in named]):
        if isinstance(one, torch.Tensor):
            with of_torch.quietly(), contextlib.suppress(Exception):  # its dtype has no such kernels
                if of_torch.why_unreadable(one) is None:
                    found.append(nonfinite(of_torch.plain(one), inf))
    return found


def identity(tensor: torch.Tensor) -> tuple[int, Any]:
    """An address, and a weak reference that occupies it. Routines get an alias of a sparse tensor: its values are the
    same."""
    with of_torch.quietly():
        if tensor.layout is torch.strided or tensor.is_nested or _has_own_dispatch(tensor):
            return tensor._cdata, WeakTensorRef(tensor)
        values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
        storage = values.untyped_storage()
        return storage._cdata, StorageWeakRef(storage)


def _has_own_dispatch(tensor: torch.Tensor) -> bool:
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def is_on_cpu(values: Any) -> bool:
    return all(value.device.type == "cpu" for value in flattened(values) if isinstance(value, torch.Tensor))


def is_view(result: Any, inputs: Sequence[tuple[str, Any]]) -> bool:
    """True if it is in the memory of an input. A wrapper must be the same object."""
    for _, value in inputs:
        if value is result:
            return True
        if not (isinstance(value, torch.Tensor) and isinstance(result, torch.Tensor)):
            continue
        if of_torch.why_unreadable(value) is None and of_torch.why_unreadable(result) is None:
            kept = [of_torch.plain(one).untyped_storage()._cdata for one in (value, result)]
            if kept[0] == kept[1]:
                return True
    return False


def reader(inf: bool) -> Any:
    """For `Skips.read`."""

    def function(array: Any, arrays: Arrays) -> Any:
        return nonfinite(array, inf)

    return function


def all_flags(flags: Sequence[Any]) -> list[bool]:
    """Waits for the devices."""
    by_device: dict[Any, list[int]] = {}
    for i, flag in enumerate(flags):
        if not isinstance(flag, bool):
            by_device.setdefault(flag.device, []).append(i)
    found = [flag is True for flag in flags]
    for positions in by_device.values():
        for i, value in zip(positions, torch.stack([flags[i] for i in positions]).tolist(), strict=True):
            found[i] = value
    return found


def kept(flag: Any) -> Any:
    """A flag that `all_flags` can read later. Flags that `torch.func.functionalize` has wrapped must be read inside."""
    return bool(flag) if is_functional(flag) else flag


def either(flags: Sequence[Any]) -> Any:
    """True if one flag is; on the device of the first."""
    result = flags[0]
    for flag in flags[1:]:
        result = result | flag.to(result.device, non_blocking=True)
    return result


def none_of(device: Any) -> Any:
    return torch.zeros((), dtype=torch.bool, device=device)
