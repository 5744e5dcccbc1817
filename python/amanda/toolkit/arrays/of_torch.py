"""Tensors of PyTorch: an implementation of `amanda.toolkit.arrays.Arrays`."""

from __future__ import annotations

import contextlib
import math
import operator
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from amanda import _torch_tools
from amanda.drivers.torch import port

xp: Any = torch

# ---- reading ---------------------------------------------------------------------------------------------------------


def quietly() -> contextlib.AbstractContextManager[Any]:
    context: contextlib.AbstractContextManager[Any] = port.WithoutTorchFunction()
    return context


def why_unreadable(tensor: torch.Tensor) -> str | None:
    if port.is_legacy_batched(tensor):
        return "batched"
    tensor = torch.func.debug_unwrap(tensor)
    if port.is_legacy_batched(tensor):
        return "batched"
    if is_symbolic(tensor):
        return "symbolic"
    if tensor.is_nested:
        return "nested"
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return "distributed" if _is_distributed(tensor) else "subclass"
    if tensor.is_meta:
        return "meta"
    if tensor.layout is not torch.strided:
        return "sparse"
    if tensor.is_quantized:
        return "quantized"
    return "freed" if tensor.numel() and not tensor.untyped_storage().nbytes() else None


def is_symbolic(tensor: torch.Tensor) -> bool:
    """Reading its sizes would then add to the trace."""
    if any(cls.__name__ in ("FakeTensor", "FunctionalTensor") for cls in type(tensor).__mro__):
        return True
    return not tensor.is_nested and not all(type(size) is int for size in tensor.shape)


def _is_distributed(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # if not imported, no DTensor exists
    return module is not None and isinstance(tensor, module.DTensor)


def is_parameter(tensor: torch.Tensor) -> bool:
    """True if the tensor is a parameter, or a view of one."""
    return isinstance(tensor, torch.nn.Parameter) or isinstance(tensor._base, torch.nn.Parameter)


_NARROW = {torch.int64: torch.int8, torch.float64: torch.float16, torch.complex128: torch.complex64}
_NARROW_SCALARS = {wide: torch.empty((), dtype=narrow) for wide, narrow in _NARROW.items()}


def is_number(tensor: torch.Tensor) -> bool:
    """True for a number of the program, which PyTorch has made a tensor of, as the 2 of ``x * 2``: its type yields to the
    narrower type of another tensor."""
    if tensor.dim() != 0 or tensor.dtype not in _NARROW_SCALARS:
        return False
    return bool(torch.result_type(tensor, _NARROW_SCALARS[tensor.dtype]) != tensor.dtype)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return torch.func.debug_unwrap(tensor)


def is_transformed(tensor: torch.Tensor) -> bool:
    """True if it is a wrapper of a transformation of torch.func."""
    return bool(port.is_functorch_wrapper(tensor))


def is_transforming() -> bool:
    """True if a transformation of torch.func, or forward-mode differentiation, runs on this thread."""
    return port.functorch_level() is not None or port.differentiates_forward()


def has_tangent(tensor: torch.Tensor) -> bool:
    """True if the tensor has a tangent of forward-mode differentiation, at any level of torch.func."""
    while not _torch_tools.has_tangent(tensor):
        if not is_transformed(tensor):
            return False
        tensor = port.get_unwrapped(tensor)
    return True


def untransformed() -> contextlib.AbstractContextManager[Any]:
    return lasting() if is_transforming() else contextlib.nullcontext()


def detached(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def nbytes(tensor: torch.Tensor) -> int:
    # Not numel(): it is a method, and programs override it. Nested tensors offer nothing else.
    count = tensor.numel() if tensor.is_nested else math.prod(tensor.shape)
    return int(operator.index(count) * tensor.dtype.itemsize)


def is_floating(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point())


def is_complex(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_complex())


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype)


def zeros(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)


def copied(tensor: torch.Tensor, device: Any = None, dtype: torch.dtype | None = None) -> torch.Tensor:
    return tensor.detach().to(device or tensor.device, dtype or tensor.dtype, copy=True)


def like(tensor: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=tensor.dtype, device=tensor.device)


# ---- numbers of whole tensors ----------------------------------------------------------------------------------------


def extremes(tensor: torch.Tensor) -> tuple[float, float]:
    aten = torch.ops.aten  # other tools, which wrap torch's functions, would take these calls for the program's
    smallest, largest = aten.aminmax(tensor)
    return aten._local_scalar_dense(smallest), aten._local_scalar_dense(largest)


def mean_and_variance(tensor: torch.Tensor) -> tuple[float, float]:
    variance, mean = torch.var_mean(tensor, correction=0)  # Welford's algorithm
    return mean.item(), variance.item()


def norm(tensor: torch.Tensor) -> float:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        tensor = tensor.double()  # a torch.autograd.Function may return integers
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return float(torch.linalg.vector_norm(tensor, dtype=dtype))


# ---- masks -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    with (
        torch.inference_mode(False),  # turns forward mode on
        torch.no_grad(),
        port.set_forward_mode(False),
        port.WithoutFunctorch(),
    ):
        yield


def matching(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return tensor.to(other)


def filled_like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor).copy_(values)


def without_smallest(tensor: torch.Tensor, count: int) -> torch.Tensor:
    smallest = tensor.flatten().topk(count, largest=False).indices
    mask = torch.ones(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return mask.index_fill(0, smallest, 0).view(tensor.shape)


# ---- bits ------------------------------------------------------------------------------------------------------------

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, without lazy conjugation, too."""
    return tensor.clone()


def as_reals(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(_INTEGERS[tensor.dtype.itemsize])


def numbers(tensor: torch.Tensor) -> list[Any]:
    return list(tensor.tolist())


def take(tensor: torch.Tensor, positions: list[int]) -> torch.Tensor:
    return tensor.take(torch.tensor(positions, device=tensor.device)).cpu()


def put(tensor: torch.Tensor, positions: list[int], elements: torch.Tensor) -> None:
    tensor.put_(torch.tensor(positions, device=tensor.device), elements.to(tensor.device))


# ---- random numbers --------------------------------------------------------------------------------------------------


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def integers(generator: torch.Generator, below: int, count: int) -> list[int]:
    return [*map(int, torch.randint(below, (count,), generator=generator))]


def distinct(generator: torch.Generator, below: int, count: int) -> list[int]:
    return [*map(int, torch.randperm(below, generator=generator)[:count])]


def uniform(generator: torch.Generator, count: int) -> torch.Tensor:
    return torch.rand(count, generator=generator, dtype=torch.float64)


def binomial(generator: torch.Generator, count: int, rate: float) -> int:
    drawn = torch.binomial(
        torch.tensor(float(count), dtype=torch.float64), torch.tensor(rate, dtype=torch.float64), generator=generator
    )
    return int(drawn)
