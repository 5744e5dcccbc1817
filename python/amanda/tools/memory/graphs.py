"""The tensors that autograd's graphs keep, for results that a program holds. Imports torch: import it late."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .owners import Owned
from .rows import GRAPHS

MOST_NODES = 1_000_000


def saved_by(results: Sequence[torch.Tensor]) -> Iterator[Owned]:
    """The tensors that the graphs of these results hold, as they are: hooks that unpack a tensor are not called.

    A node frees what it has saved when a backward pass has run through it, unless the program asked to retain it.
    """
    for node in _nodes(results):
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                for tensor in _held(node, name):
                    yield Owned(tensor, "saved activation", f"{node.name()} of {GRAPHS}", "")


def _nodes(results: Sequence[torch.Tensor]) -> Iterator[Any]:
    waiting = [result.grad_fn for result in results if result.grad_fn is not None]
    known = set(waiting)
    while waiting and len(known) < MOST_NODES:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in known:
                known.add(following)
                waiting.append(following)


def _held(node: Any, name: str) -> Iterator[torch.Tensor]:
    with contextlib.suppress(RuntimeError):  # a backward pass has freed it
        saved = getattr(node, name)
        for each in saved if isinstance(saved, tuple | list) else [saved]:
            data = getattr(each, "data", None)
            if isinstance(data, torch.Tensor):
                yield data
