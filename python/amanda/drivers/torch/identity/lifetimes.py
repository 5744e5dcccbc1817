"""The deaths of objects and tensors that the PyTorch driver records."""

from __future__ import annotations

from amanda import _torch
from amanda.driver.identity.lifetimes import Lifetimes

objects = Lifetimes(_torch.dead_objects)  # objects passed to `watch`, by address
tensors = Lifetimes(_torch.dead_numbers)  # by the tensor's number
watch = _torch.watch


def tell() -> None:
    objects.tell()
    tensors.tell()
