"""Which tensors the tools here can read, and which they skip: one rule for all of them."""

from __future__ import annotations

import collections
import logging
import math
import operator
import sys
from collections.abc import Callable
from typing import TypeVar

import torch

from amanda import _fork
from amanda.drivers.torch import port

T = TypeVar("T")


class Skips:
    """What a tool has skipped, by reason. Each reason is logged once."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._counts: collections.Counter[str] = collections.Counter()
        self._said: set[str] = set()
        self._lock = _fork.lock()

    def add(self, reason: str, detail: str = "") -> None:
        with self._lock:
            self._counts[reason] += 1
            first = reason not in self._said
            self._said.add(reason)
        if first:
            why = f"{REASONS[reason]}{f' ({detail})' if detail else ''}"
            logging.getLogger("amanda").warning("[%s] skips what it can't read: %s (said once)", self._tool, why)

    def reset(self) -> None:
        """Sets all counts to zero. What was logged is not logged again."""
        with self._lock:
            self._counts.clear()

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def caption(self) -> str:
        """A caption for tables; empty if nothing was skipped."""
        counts = self.counts()
        return "skipped: " + ", ".join(f"{count} {reason}" for reason, count in counts.items()) if counts else ""

    def unreadable(self, tensor: torch.Tensor) -> bool:
        """Returns True, and counts the tensor, if it has no elements that a tool could compute with."""
        reason = why_unreadable(tensor)
        if reason is not None:
            self.add(reason)
        return reason is not None

    def read(self, tensor: torch.Tensor, function: Callable[[torch.Tensor], T]) -> T | None:
        """Calls `function` on the tensor without its wrappers. If it cannot be read, counts it and returns None.

        `function` receives elements that it can compute with. It may still raise; this is counted too.
        """
        with port.WithoutTorchFunction():
            reason, detail = why_unreadable(tensor), ""
            if reason is None:
                try:
                    return function(torch.func.debug_unwrap(tensor))
                except Exception as error:
                    reason, detail = "failed", f"{type(error).__name__}: {error}"
        self.add(reason, detail)
        return None

    def size(self, tensor: torch.Tensor) -> int | None:
        """The bytes of the tensor's elements, readable or not. If unknown, counts the tensor and returns None."""
        if is_symbolic(tensor):
            self.add("symbolic")
            return None
        try:
            # Not numel(): it is a method, and programs override it. Nested tensors offer nothing else.
            count = tensor.numel() if tensor.is_nested else math.prod(tensor.shape)
            return int(operator.index(count) * tensor.dtype.itemsize)
        except Exception as error:
            self.add("failed", f"{type(error).__name__}: {error}")
            return None


REASONS = {
    "symbolic": "a tensor of a tracer, without elements",
    "meta": "a tensor without elements, on the meta device",
    "nested": "a nested tensor",
    "sparse": "a sparse tensor",
    "quantized": "a quantized tensor",
    "distributed": "a distributed tensor, of which this process holds a part",
    "subclass": "a tensor subclass with its own __torch_dispatch__",
    "batched": "a tensor under an older vmap, such as is_grads_batched=True",
    "failed": "reading it failed",
}


def why_unreadable(tensor: torch.Tensor) -> str | None:
    """Why the tensor has no elements that a tool could compute with; None if it has."""
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
    return "quantized" if tensor.is_quantized else None


def is_parameter(tensor: torch.Tensor) -> bool:
    """Or a view of one."""
    return isinstance(tensor, torch.nn.Parameter) or isinstance(tensor._base, torch.nn.Parameter)


def is_symbolic(tensor: torch.Tensor) -> bool:
    """True if the tensor is being traced. Reading its sizes would then add to the trace."""
    if any(cls.__name__ in ("FakeTensor", "FunctionalTensor") for cls in type(tensor).__mro__):
        return True
    return not tensor.is_nested and not all(type(size) is int for size in tensor.shape)


def _is_distributed(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # if not imported, no DTensor exists
    return module is not None and isinstance(tensor, module.DTensor)
