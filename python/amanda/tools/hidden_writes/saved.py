"""The tensors that an autograd node has saved. Imports torch."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

_RAW = "_raw_saved_"


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(_RAW))


def tensors(node: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Named as the node names them. Hooks of the program that unpack them are not called: what they have packed is not
    among them."""
    kind: Any = type(node)
    for name in _names(kind):
        value = getattr(node, name)
        for one in value if isinstance(value, tuple) else (value,):
            packed = getattr(one, "data", None)
            if isinstance(packed, torch.Tensor):
                yield name.removeprefix(_RAW), packed
