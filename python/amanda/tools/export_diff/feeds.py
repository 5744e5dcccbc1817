"""Feeds: the arguments of a call as inputs of the file."""

from __future__ import annotations

from typing import Any

from . import libraries
from .arrays import Kept
from .calls import Call


def feeds_of(inputs: list[Any], call: Call) -> dict[str, Kept]:
    """The tensor for each input: that of the argument with its name; the others in their order.

    Raises:
        ValueError: they do not fit. The text says why.
    """
    named = {name: kept[0] for name, kept in call.arguments.items() if len(kept) == 1}
    found = {each.name: named[each.name] for each in inputs if each.name in named}
    rest = [kept for name, some in call.arguments.items() if name not in found for kept in some]
    waiting = [each for each in inputs if each.name not in found]
    if len(waiting) != len(rest):
        given = sum(map(len, call.arguments.values()))
        raise ValueError(f"it got {_counted(given)}, and the file takes {_counted(len(inputs))}")
    found.update((each.name, kept) for each, kept in zip(waiting, rest, strict=True))
    for each in inputs:
        _check(each, found[each.name])
    return {each.name: found[each.name] for each in inputs}


def array_for(wanted: Any, kept: Kept) -> Any:
    """The elements in the dtype of an input. `wanted`: its number in `onnx.TensorProto`."""
    return kept.array.astype(libraries.onnx().helper.tensor_dtype_to_np_dtype(wanted), copy=False)


def _check(wanted: Any, kept: Kept) -> None:
    dims = wanted.type.tensor_type.shape.dim
    fixed = [each.dim_value if each.HasField("dim_value") else None for each in dims]
    shape = list(kept.shape)
    if len(fixed) != len(shape) or any(a is not None and a != b for a, b in zip(fixed, shape, strict=True)):
        text = ", ".join("any" if each is None else str(each) for each in fixed)
        raise ValueError(f"its {wanted.name} has the shape {shape}, and the file takes [{text}]")


def _counted(count: int) -> str:
    return f"{count} tensor{'s' * (count != 1)}"
