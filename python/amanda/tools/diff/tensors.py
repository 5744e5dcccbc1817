"""Tensors of PyTorch: an implementation of `amanda.tools.diff.values.Values`. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from amanda.toolkit.arrays import of_torch

from .tolerances import Difference, Tolerances

_STORED = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
}
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dtype_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def shape_of(tensor: torch.Tensor) -> Sequence[int] | None:
    return None if tensor.is_nested or of_torch.is_symbolic(tensor) else list(tensor.shape)


def number_in(tensor: torch.Tensor) -> str | None:
    is_number = tensor.dim() == 0 and tensor.dtype in (torch.float64, torch.int64)
    return repr(tensor.item()) if is_number else None


def kept(tensor: torch.Tensor) -> torch.Tensor | None:
    return _on_cpu(tensor) if tensor.dtype in _STORED else None


def data(tensor: torch.Tensor, *, is_kept: bool) -> memoryview:
    mine = tensor if is_kept else _on_cpu(tensor)
    return memoryview(mine.flatten().view(torch.uint8).numpy())


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).resolve_conj().resolve_neg().contiguous()


def made(data: bytearray, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    kind = getattr(torch, dtype)
    return torch.frombuffer(data, dtype=kind).reshape(shape) if data else torch.empty(shape, dtype=kind)


def memory(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else None


def copied(value: Any) -> Any:
    """Copies of the tensors in it."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if of_torch.why_unreadable(value) is None else value
    return [copied(member) for member in value] if isinstance(value, (list, tuple)) else value


def sizes(tensor: torch.Tensor) -> Any:
    wide = tensor if tensor.is_complex() else tensor.double()
    return wide.abs().double().flatten().numpy()


def elements(tensor: torch.Tensor) -> Any:
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return parts.double().flatten().numpy()


def is_equal(tensor: torch.Tensor, reference: torch.Tensor) -> bool:
    return tensor.dtype == reference.dtype and tensor.shape == reference.shape and bool(_same(tensor, reference).all())


def _same(tensor: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """The mask of the equal elements of two tensors of one dtype."""
    if tensor.is_complex():
        return _same(torch.view_as_real(tensor), torch.view_as_real(reference)).all(-1)
    if not tensor.is_floating_point():
        return tensor == reference
    bits = _BITS[tensor.element_size()]
    equal = tensor.contiguous().view(bits) == reference.contiguous().view(bits)
    return equal | (tensor.isnan() & reference.isnan())


def difference(
    tensor: torch.Tensor, reference: torch.Tensor, tolerances: Tolerances, dtypes: Sequence[str] = ()
) -> Difference | None:
    dtype, shape, other = dtype_of(tensor), tuple(tensor.shape), dtype_of(reference)
    if tensor.shape != reference.shape:
        note = f"shape {list(tensor.shape)} instead of {list(reference.shape)}"
        return Difference(dtype, shape, tensor.numel(), None, None, note)
    rtol, atol = tolerances.of({dtype, other, *dtypes})
    wide = torch.complex128 if tensor.is_complex() or reference.is_complex() else torch.float64
    if not (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype == reference.dtype:
        wide = torch.int64 if tensor.dtype != torch.bool else torch.int8
    ours, theirs = tensor.to(wide), reference.to(wide)
    distance = (ours - theirs).abs().double()
    same = (
        _same(tensor, reference)
        if tensor.dtype == reference.dtype
        else (ours == theirs) | ours.isnan() & theirs.isnan()
    )
    bad = ~(same | (distance <= atol + rtol * theirs.abs().double())) if rtol or atol else ~same
    count = int(bad.sum())
    if not count:
        return None
    scale = theirs.abs().double()
    some = distance[bad].nan_to_num(nan=math.inf, posinf=math.inf)
    relative = (some / scale[bad]).nan_to_num(nan=0.0, posinf=math.inf)
    note = f"{dtype} instead of {other}" if dtype != other else ""
    return Difference(dtype, shape, count, some.max().item(), relative.max().item(), note)


def healed(tensor: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return reference.to(tensor.device, tensor.dtype, copy=True)


def overwrite(tensor: torch.Tensor, reference: torch.Tensor) -> None:
    # through .data, as autograd does not know of these writes: batch_norm saves its running statistics
    tensor.data.copy_(reference)
