"""The backend: what the core knows of compiled programs. Operators and their ids are those of the eager driver."""

from __future__ import annotations

import functools
from typing import Any

import torch

from amanda import _core, _torch
from amanda.drivers.torch.identity import parameter_names
from amanda.drivers.torch_compile import port

_MINOR = ".".join(_torch.built_for().split(".")[:2])  # as in the eager driver's

COMPILE = _core.GraphBackend(
    f"pytorch/{_MINOR}/compile",
    backward="one",
    can_replace=True,
    both_sides=True,
    same_ids_as=f"pytorch/{_MINOR}/eager",
)


def describe(value: Any) -> dict[str, Any] | None:
    """A symbol, for C++ tools."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return None
    if not isinstance(value, torch.Tensor):
        return None
    known: dict[str, Any] = {
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": _device(value.device),
        "requires_grad": value.requires_grad,
        "bytes": None,
    }
    if not value.is_nested:
        sizes = [_known(size) for size in value.shape]
        known["sizes"] = sizes
        if None not in sizes:
            known["bytes"] = functools.reduce(lambda a, b: a * b, sizes, value.element_size())
    return known


def _device(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" and device.index is None else str(device)


def _known(size: int | torch.SymInt) -> int | None:
    if isinstance(size, int):
        return size
    known: int | None = size.node.maybe_as_int()
    return known


def name_of(symbol: Any) -> str | None:
    """The name of a parameter or buffer in its model."""
    if not isinstance(symbol, torch.Tensor) or isinstance(symbol, port.FakeTensor):
        return None
    return parameter_names.name_of(symbol)


COMPILE.describe(describe)
COMPILE.name_parameters(name_of)


@functools.cache
def intern(op: port.OpOverload) -> int:
    """The number of an operator type."""
    schema = op._schema
    namespace, _, name = schema.name.partition("::")
    return COMPILE.intern(
        namespace,
        name,
        schema.overload_name,
        inputs=[argument.name for argument in schema.arguments],
        outputs=[result.name for result in schema.returns],
        schema=str(schema),
    )


@functools.cache
def intern_backward(name: str) -> int:
    """The number of a backward operator type, as "AddmmBackward0"."""
    return COMPILE.intern("autograd", name, schema=f"autograd::{name}(grad_outputs) -> grad_inputs")
