"""Attributes: tensors of modules that require a gradient, and are no parameters. Imports torch."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Container, Iterator
from typing import Any

import torch

from amanda.toolkit.torch import named_parts

LEAST = 2  # steps


@dataclasses.dataclass
class _Attribute:
    module: weakref.ref[Any]
    key: str
    name: str
    tensor: weakref.ref[Any]
    version: int
    steps: int = 0  # of optimizers, at which it was as it is
    is_other: bool = False  # the program has written to it, or set another one


class Attributes:
    """Those that a model has before it runs: later ones are results, such as hidden states."""

    def __init__(self) -> None:
        self._all: list[_Attribute] = []

    def look_at(self, model: Any) -> None:
        for path, part in named_parts(model):
            for key, value in vars(part).items():
                if (
                    isinstance(value, torch.Tensor)
                    and value.requires_grad
                    and not isinstance(value, torch.nn.Parameter)
                ):
                    name = f"{path}.{key}" if path else key
                    self._all.append(_Attribute(weakref.ref(part), key, name, weakref.ref(value), value._version))

    def on_step(self) -> None:
        """An optimizer takes a step. Normalizations of weights set another tensor each time."""
        for one in self._all:
            module, tensor = one.module(), one.tensor()
            if module is not None and not one.is_other:
                is_same = tensor is not None and vars(module).get(one.key) is tensor and tensor._version == one.version
                one.steps, one.is_other = one.steps + is_same, not is_same

    def never_changed(self, trained: Container[int]) -> Iterator[str]:
        """The names of those that are not among these, by id."""
        for one in self._all:
            tensor = one.tensor()
            if one.steps >= LEAST and not one.is_other and (tensor is None or id(tensor) not in trained):
                yield one.name
