"""Captured: results that were kept, by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from .attention_weights import WEIGHTS
from .names import Naming, ResultName, listed
from .stores import FolderStore, Kind, Store

if TYPE_CHECKING:
    import numpy as np
    import torch

Array: TypeAlias = Union["torch.Tensor", "np.ndarray[Any, Any]"]
Value: TypeAlias = Array | tuple[Array, ...]
"""A result; a tuple where an operator returns several tensors or a list of them."""


class Captured(Mapping[str, Value]):
    """Results of operators, and their gradients, by name; a mapping.

    ``captured["encoder.layer.0.attention.query"]`` is the result of the latest run that was kept. A name is
    "module:operator", "module:operator[1]" for the second operator of that type which the module calls, the path of a
    module of which one result was kept, or a name of the naming. Iteration gives full names, in the order in which the
    operators first ran.

    A name that stands for no result, or for several, raises a `KeyError` that lists those there are.
    """

    def __init__(self, store: Store, naming: Naming | None = None) -> None:
        self._store, self._naming = store, naming

    def __getitem__(self, name: str) -> Value:
        return self._latest("result", name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.names())

    def __len__(self) -> int:
        return len(self._store.names())

    def __contains__(self, name: object) -> bool:
        try:
            self._resolved(name)
        except KeyError:
            return False
        return True

    def grad(self, name: str) -> Value:
        """The gradient of the result of the latest run that was kept, and has one. See `Capture`."""
        return self._latest("grad", name)

    def runs(self, name: str) -> dict[int, Value]:
        """The results of all runs that were kept, by the number of the run."""
        return self._all("result", name)

    def grads(self, name: str) -> dict[int, Value]:
        """The gradients of all runs that were kept, by the number of the run."""
        return self._all("grad", name)

    def _all(self, kind: Kind, name: str) -> dict[int, Value]:
        full = self._resolved(name)
        return {run: self._value(kind, full, run) for run in self._store.runs(kind, full)}

    def _latest(self, kind: Kind, name: str) -> Value:
        full = self._resolved(name)
        runs = self._store.runs(kind, full)
        if not runs:
            raise KeyError(
                f"[capture] no gradient of {full!r} was kept: it needs grad=True, and a backward pass that "
                "reaches the result"
            )
        return self._value(kind, full, runs[-1])

    def _value(self, kind: Kind, full: str, run: int) -> Value:
        tensors, is_list = self._store.get(kind, full, run)
        return tensors if is_list else tensors[0]

    def _resolved(self, name: object) -> str:
        """The full name."""
        known = self._store.names()
        text = name.removesuffix("[0]") if isinstance(name, str) else name
        if text in known:
            return str(text)
        names = [ResultName.parse(each) for each in known]
        found = [each for each in names if each.module == text and each.op != WEIGHTS]
        if not found and self._naming is not None:
            found = [each for each in names if text in self._naming.names_of(each)]
        if len(found) == 1:
            return str(found[0])
        if found:
            raise KeyError(f"[capture] {name!r} stands for {len(found)} results; name one: {listed(found)}")
        inside = [each for each in known if isinstance(text, str) and each.startswith((f"{text}.", f"{text}:"))]
        there = f"inside it: {listed(inside)}" if inside else f"there are: {listed(known) or 'none'}"
        raise KeyError(f"[capture] no result {name!r} was kept; {there}")


def load(folder: str | os.PathLike[str], *, naming: Naming | None = None) -> Captured:
    """The results that a `Capture` with ``folder=`` has written; tensors are read when they are asked for.

    Raises:
        FileNotFoundError: there are none in the folder.
        ImportError: safetensors is not installed.
        ValueError: a file in it was written by something else.
    """
    return Captured(FolderStore(folder, new=False), naming)
