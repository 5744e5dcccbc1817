"""What a diff does with PyTorch's tensors. Imports torch: import it where an operator ran."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.testing._comparison import default_tolerances

from amanda.tools._arrays import of_torch

_STORED = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
}
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True)
class Difference:
    """Between a result and the reference's."""

    dtype: str
    shape: tuple[int, ...] | None  # None, as the next ones: its elements are not known
    elements: int | None  # that differ by more than is tolerated
    max_abs: float | None  # None: shapes differ
    max_rel: float | None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Tolerances:
    """Differences up to ``atol + rtol * abs(reference)`` are tolerated. None: 0 within a dtype; between dtypes what
    `torch.testing.assert_close` tolerates for the coarser one; with `close` that within a dtype, too."""

    rtol: float | None = None
    atol: float | None = None
    close: bool = False

    def of(self, dtypes: Iterable[torch.dtype]) -> tuple[float, float]:
        dtypes = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
        default = (0.0, 0.0)
        if dtypes and (self.close or len(dtypes) > 1):
            default = default_tolerances(*dtypes)
        return default[0] if self.rtol is None else self.rtol, default[1] if self.atol is None else self.atol


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """A result's tensors in order: itself, or the members of lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from tensors_in(member)


def kept(tensor: torch.Tensor) -> torch.Tensor | None:
    """A copy on the CPU; None: it has no elements that can be stored."""
    if of_torch.why_unreadable(tensor) is not None or tensor.dtype not in _STORED:
        return None
    return tensor.detach().to("cpu", copy=True).contiguous()


def copied(value: Any) -> Any:
    """Copies of the tensors in it."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if of_torch.why_unreadable(value) is None else value
    return [copied(member) for member in value] if isinstance(value, (list, tuple)) else value


def memory(values: Any) -> set[int]:
    """Where the tensors in it have their elements."""
    readable = (tensor for tensor in tensors_in(values) if of_torch.why_unreadable(tensor) is None)
    return {tensor.untyped_storage().data_ptr() for tensor in readable if tensor.numel()}


def is_equal(tensor: torch.Tensor, reference: torch.Tensor) -> bool:
    """Bit for bit, but that NaN equals NaN."""
    return tensor.dtype == reference.dtype and tensor.shape == reference.shape and bool(_same(tensor, reference).all())


def _same(tensor: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Which elements of two tensors of one dtype are equal?"""
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
    """None: they agree within the tolerances. `dtypes`: of inputs, where those of the two operators differ."""
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if tensor.shape != reference.shape:
        note = f"shape {list(tensor.shape)} instead of {list(reference.shape)}"
        return Difference(dtype, shape, tensor.numel(), None, None, note)
    rtol, atol = tolerances.of({tensor.dtype, reference.dtype, *(getattr(torch, name) for name in dtypes)})
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
    note = (
        f"{dtype} instead of {str(reference.dtype).removeprefix('torch.')}" if tensor.dtype != reference.dtype else ""
    )
    return Difference(dtype, shape, count, some.max().item(), relative.max().item(), note)


def healed(value: Any, references: Iterator[torch.Tensor | None]) -> Any:
    """The value with the references' elements, in its own dtypes and on its devices. None: nothing changes."""
    if isinstance(value, torch.Tensor):
        reference = next(references)
        if reference is None or reference.shape != value.shape:
            return None
        return reference.to(value.device, value.dtype, copy=True)  # what is read from a file may not be aligned
    if isinstance(value, (list, tuple)):
        members = [healed(member, references) for member in value]
        if any(member is not None for member in members):
            return [old if new is None else new for old, new in zip(value, members, strict=True)]
    return None
