"""Fake tensors of Dynamo's for another run of its graph: in-place operators must not change Dynamo's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from amanda.drivers.torch_compile import port


@contextlib.contextmanager
def fake_run(fake_mode: Any) -> Iterator[None]:
    """A context of runs of nodes: they leave no guards, no symbols, and nothing in Dynamo's own tracing context."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(port.tracing(None))
        stack.enter_context(port.WithoutTorchFunctions())
        stack.enter_context(fake_mode)
        stack.enter_context(port.enable_python_dispatcher())  # as Dynamo: it keeps sizes symbolic
        if fake_mode.shape_env is not None:
            stack.enter_context(fake_mode.shape_env.ignore_fresh_unbacked_symbols())
            stack.enter_context(fake_mode.shape_env.suppress_guards())
        stack.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        stack.callback(_leave_levels, port.functorch_level())
        yield


def _leave_levels(outermost: int | None) -> None:
    """A failed run may leave levels of torch.func behind."""
    while (port.functorch_level() or 0) > (outermost or 0):
        port.pop_functorch_level()


def mode_of(values: Iterable[Any]) -> Any:
    """The mode of the first value that is fake, or has fake parts; None if there is no such value."""
    modes = (port.fake_mode_of(value) for value in values if isinstance(value, torch.Tensor))
    return next((mode for mode in modes if mode is not None), None)


def fresh(example: Any) -> Any:
    """The same value, with tensors that share nothing with the example's. Under the fake mode."""
    if isinstance(example, torch.Tensor):
        return _fresh_tensor(example)
    if type(example) in (tuple, list):
        return type(example)(map(fresh, example))
    if isinstance(example, tuple):  # torch.return_types, torch.Size
        return tuple(map(fresh, example))
    return example


def _fresh_tensor(example: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        if is_plain(example):
            made = torch.empty_strided(example.size(), example.stride(), dtype=example.dtype, device=example.device)
        else:
            made = example.detach()
    if example.requires_grad:
        made.requires_grad_()
        if node_of(example) is not None:
            with torch.enable_grad():
                made = made.clone()
    return made


def node_of(tensor: torch.Tensor) -> Any:
    """The autograd node of a tensor; None if it has none, or may not have one, such as a view that was made under no_grad,
    of memory that was written to since."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def is_plain(tensor: torch.Tensor) -> bool:
    """True if it is a strided tensor without special properties."""
    return (
        tensor.layout == torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not port.is_traceable_wrapper_subclass(tensor)
        and not port.is_functorch_wrapper(tensor)
    )


def has_unbacked(value: Any) -> bool:
    """True if it contains symbols that stand for data."""
    if isinstance(value, torch.Tensor):
        return is_plain(value) and bool(port.free_unbacked_symbols(value))
    if isinstance(value, tuple | list):
        return any(map(has_unbacked, value))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) and bool(port.free_unbacked_symbols(value))
