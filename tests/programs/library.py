"""What the programs share."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves


def left_of(model: torch.nn.Module, optimizer: Any = None) -> dict[str, Any]:
    """What a training leaves behind: weights, buffers, gradients, and the optimizer's state."""
    left: dict[str, Any] = {name: value.detach() for name, value in [*model.named_parameters(), *model.named_buffers()]}
    left |= {f"{name}.grad": value.grad for name, value in model.named_parameters() if value.grad is not None}
    if optimizer is not None:
        left["optimizer"] = [leaf for leaf in tree_leaves(optimizer.state_dict()) if isinstance(leaf, torch.Tensor)]
    return left
