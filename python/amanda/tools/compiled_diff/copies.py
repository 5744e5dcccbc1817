"""Copies of the inputs of a graph, with the same strides, which share memory where the inputs do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Storages = dict[int, torch.UntypedStorage]


def copies(values: Sequence[Any]) -> list[Any]:
    """Copies of the tensors among them, which are leaves. Other values are kept as they are."""
    known: Storages = {}
    return [_copy(value, known) if isinstance(value, torch.Tensor) else value for value in values]


def why_not(values: Sequence[Any]) -> str:
    """The reason why these cannot be copied; "" if they can."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                return f"an input is a {type(value).__name__}"
            if value.layout != torch.strided or value.is_quantized or value.is_nested or value.device.type == "meta":
                return "an input is a sparse, nested, quantized or meta tensor"
            if value.is_conj() or value.is_neg():
                return "an input is a conjugate view"
    return ""


def storage_of(tensor: torch.Tensor) -> int:
    """A number that tensors have in common if they share memory."""
    return tensor.untyped_storage().data_ptr() or id(tensor)


def _copy(tensor: torch.Tensor, known: Storages) -> torch.Tensor:
    with torch.no_grad():
        whole = tensor.untyped_storage()
        key = storage_of(tensor)
        if key not in known:
            known[key] = whole.clone()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(known[key], tensor.storage_offset(), tensor.size(), tensor.stride())
    return made.requires_grad_(tensor.requires_grad)
