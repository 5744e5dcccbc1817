"""The tensors that the nodes of a backward graph have saved, and which of them was written to. Imports torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from amanda.toolkit.torch import parameter_name

from .writes import version

_RAW, _SAVED = "_raw_saved_", "_saved_"
_OF_FUNCTION = "tensors"  # the saved tensors of an autograd.Function
_TOLD = re.compile(r"\[(?P<shape>[\d, ]*)\]\].*? is at version (?P<version>\d+); expected version (?P<expected>\d+)")


class Told(NamedTuple):
    """The tensor, as PyTorch's error describes it."""

    text: str
    shape: tuple[int, ...]
    version: int  # now
    expected: int  # when it was saved

    @classmethod
    def of(cls, error: BaseException) -> Told | None:
        found = _TOLD.search(str(error))
        if found is None:
            return None
        shape = tuple(int(one) for one in re.findall(r"\d+", found["shape"]))
        return cls(found[0], shape, int(found["version"]), int(found["expected"]))

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class Overwritten(NamedTuple):
    """A tensor that a node has saved, and cannot use."""

    node: Any
    name: str  # the node's
    storage: int


def overwritten(began: Sequence[Any], told: Told) -> Overwritten | None:
    """The tensor that PyTorch's error describes, with the node that needs it.

    Arguments:
        began: where the backward pass began. Nodes run in the order of their numbers, the last one first.
    """
    nodes = sorted(nodes_of(began), key=lambda node: -int(node._sequence_nr()))
    return next((found for node in nodes for found in _of(node, told)), None)


def nodes_of(began: Sequence[Any]) -> list[Any]:
    """The nodes of the backward graph behind these tensors, or edges."""
    ends = [began] if hasattr(began, "grad_fn") else list(began)
    waiting = [getattr(end, "grad_fn", None) or getattr(end, "node", None) for end in ends]
    found: dict[Any, None] = {}
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = None
            waiting += [following for following, _ in node.next_functions]
    return list(found)


def _of(node: Any, told: Told) -> Iterator[Overwritten]:
    for attribute in dir(node):
        if attribute.startswith(_RAW):
            name = attribute.removeprefix(_RAW)
            kept = [one for one in _kept(node, attribute) if _fits(one, told)]
            if kept and _raises(node, "saved_tensors" if name == _OF_FUNCTION else f"{_SAVED}{name}", told):
                storages = {one.data.untyped_storage()._cdata for one in kept}
                if len(storages) == 1:
                    yield Overwritten(node, "saved_tensors" if name == _OF_FUNCTION else name, *storages)


def _kept(node: Any, attribute: str) -> Sequence[Any]:
    try:
        found = getattr(node, attribute)
    except RuntimeError:  # it has run, and has freed them
        return ()
    return found if isinstance(found, tuple) else (found,)


def _fits(kept: Any, told: Told) -> bool:
    """False for what the program's own hooks have packed, too: they would run."""
    try:
        if kept.unpack_hook is not None:
            return False
        tensor = kept.data
    except (AttributeError, RuntimeError):  # freed, or none; torch before 2.12 does not show it
        return False
    return version(tensor) == told.version and tuple(tensor.shape) == told.shape and _has_storage(tensor)


def _has_storage(tensor: Any) -> bool:
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, and wrappers
        return False
    return True


def _raises(node: Any, attribute: str, told: Told) -> bool:
    try:
        getattr(node, attribute)
    except RuntimeError as error:
        return told.text in str(error)
    return False


def parameter_in(node: Any, storage: int) -> str:
    """The name of the parameter with this memory whose gradient the node computes, maybe behind a view; or ""."""
    for following, _ in node.next_functions:
        for one in (following, *(one for one, _ in getattr(following, "next_functions", ()))):
            leaf = getattr(one, "variable", None)
            if leaf is not None and leaf.untyped_storage()._cdata == storage:
                return parameter_name(leaf) or ""
    return ""
