"""StandIn: what an expression gets in place of memory without values. Imports torch: import it where an operator ran."""

from __future__ import annotations

from typing import Any

import torch

from amanda.toolkit.unwritten import MEMORY

_KNOWN = {
    *("shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "requires_grad", "is_leaf", "is_cuda"),
    *("size", "stride", "numel", "nelement", "dim", "ndimension", "element_size", "storage_offset", "is_contiguous"),
    *("is_floating_point", "is_complex", "data_ptr", "__len__"),
}


class StandIn:
    """A tensor without its elements. It is no subclass of Tensor: where routines run, operators ignore its
    `__torch_dispatch__`, and would read memory that it does not have."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        if name not in _KNOWN:
            raise AttributeError(f"{name} needs values")
        return getattr(self._tensor, name)

    def _needs_values(self, *other: object) -> Any:
        raise TypeError("a comparison needs values")

    __eq__ = __ne__ = __bool__ = __hash__ = _needs_values

    def __len__(self) -> int:
        return len(self._tensor)


def replaced(operand: Any, *, is_unwritten: bool) -> Any:
    """The operand, with stand-ins for the tensors in it that have no values: all (`is_unwritten`), or those that `MEMORY`
    knows."""
    if isinstance(operand, (list, tuple)):
        members = [replaced(member, is_unwritten=is_unwritten) for member in operand]
        return members if any(new is not old for new, old in zip(members, operand, strict=True)) else operand
    if not isinstance(operand, torch.Tensor):
        return operand
    return StandIn(operand) if is_unwritten or MEMORY.find(operand) is not None else operand
