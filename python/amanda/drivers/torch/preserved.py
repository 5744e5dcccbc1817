"""Restores what a run of a program changes in addition to its results: random states, and the model's buffers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from amanda.core import switches
from amanda.drivers.torch import port
from amanda.drivers.torch.identity import models


@contextlib.contextmanager
def preserved(program: Any) -> Iterator[None]:
    """A context of a run of `program`. See `amanda.points`."""
    with switches.disabled():
        random, random_cuda = torch.get_rng_state(), _cuda_states()
        buffers = _buffers_of(program)
    try:
        yield
    finally:
        with switches.disabled():
            for buffer in buffers:
                buffer.put_back()
            torch.set_rng_state(random)
            if random_cuda:
                torch.cuda.set_rng_state_all(random_cuda)


def _cuda_states() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


class _Buffer(NamedTuple):
    module: Any
    name: str
    tensor: Any
    copy: Any
    version: int | None  # None if it has no version

    def put_back(self) -> None:
        if self.module._buffers.get(self.name) is not self.tensor:
            setattr(self.module, self.name, self.tensor)
        inference = self.version is None
        if not inference and self.tensor._version == self.version and torch.equal(self.tensor, self.copy):
            return
        with port.WithoutTorchFunctions(), torch.inference_mode() if inference else torch.no_grad():
            self.tensor.copy_(self.copy)
        if not inference:  # its content is that of this version again
            port.set_versions((self.tensor,), (self.version,))


def _buffers_of(program: Any) -> list[_Buffer]:
    model = _model_of(program)
    if model is None:
        return []
    kept = []
    for _, module in models.named_parts(model):
        for name, tensor in models.held(module, "_buffers"):
            if torch.nn.parameter.is_lazy(tensor):
                continue  # the run gives it its shape
            with port.WithoutTorchFunctions(), torch.no_grad():
                version = None if tensor.is_inference() else tensor._version
                kept.append(_Buffer(module, name, tensor, tensor.clone(), version))
    return kept


def _model_of(program: Any) -> Any:
    """The module that is called, itself or through a method; None if it is something else."""
    while isinstance(program, functools.partial):
        program = program.func
    for value in (program, getattr(program, "__self__", None)):
        if isinstance(value, torch.nn.Module):
            return value
    return None
