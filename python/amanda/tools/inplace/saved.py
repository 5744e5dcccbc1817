"""Tensors that operators may have saved for the backward pass, and those that a node can no longer use. Imports torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from amanda.toolkit import Place
from amanda.toolkit.torch import parameter_name

from .finding import MESSAGE, Write

_SAVED = "_saved_"
_TOLD = re.compile(
    MESSAGE + r".*?\[(?P<shape>[\d, ]*)\]\].*? is at version (?P<version>\d+); expected version (?P<expected>\d+)",
    re.DOTALL,
)


class Operand(NamedTuple):
    """A tensor of an operator when that ran. The tensor itself is not kept."""

    name: str
    is_result: bool
    storage: int
    version: int
    shape: tuple[int, ...]


def tensors(named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The tensors among these values that have memory and a version, also in lists."""
    for name, value in named:
        if isinstance(value, (list, tuple)):
            yield from tensors((f"{name}[{i}]", one) for i, one in enumerate(value))
        elif version(value) is not None and has_storage(value):
            yield name, value


def has_storage(value: Any) -> bool:
    try:
        value.untyped_storage()
    except (AttributeError, NotImplementedError, RuntimeError):  # sparse, and wrappers
        return False
    return True


def version(value: Any) -> int | None:
    """None for what has none: no tensor, or one of inference mode."""
    try:
        return int(value._version)
    except (AttributeError, RuntimeError):
        return None


def operands(named: Iterable[tuple[str, Any]], *, is_result: bool) -> list[Operand]:
    return [
        Operand(name, is_result, one.untyped_storage()._cdata, one._version, tuple(one.shape))
        for name, one in tensors(named)
    ]


def write(place: Place, operand: str, tensor: Any, before: int, by_optimizer: bool) -> Write:
    """The write to this tensor that has just happened."""
    base = tensor._base
    view = "" if base is None else f"a view of shape {tuple(tensor.shape)}"
    shape = tuple((tensor if base is None else base).shape)
    return Write(place, operand, view, before, tensor._version, by_optimizer, shape)


class Overwritten(NamedTuple):
    """A tensor that a node has saved, and cannot use."""

    name: str  # the node's
    size: int  # its number of elements
    version: int
    expected: int

    def may_be(self, operand: Operand, last: int) -> bool:
        """False if it is not this operand, whose version is now `last`. Nodes save views, as a transposed weight, too."""
        return (math.prod(operand.shape), last, operand.version) == (self.size, self.version, self.expected)


def overwritten(node: Any) -> Overwritten | None:
    """The first saved tensor of this node that was written to."""
    for name in dir(node):
        if name.startswith(_SAVED) or name == "saved_tensors":
            try:
                getattr(node, name)
            except RuntimeError as error:
                if found := _TOLD.search(str(error)):
                    size = math.prod(int(one) for one in re.findall(r"\d+", found["shape"]))
                    return Overwritten(name.removeprefix(_SAVED), size, int(found["version"]), int(found["expected"]))
    return None


def parameter_in(node: Any, storage: int) -> str:
    """The name of the parameter with this memory whose gradient the node computes, maybe behind a view; or ""."""
    for following, _ in node.next_functions:
        for one in (following, *(one for one, _ in getattr(following, "next_functions", ()))):
            leaf = getattr(one, "variable", None)
            if leaf is not None and leaf.untyped_storage()._cdata == storage:
                return parameter_name(leaf) or ""
    return ""
