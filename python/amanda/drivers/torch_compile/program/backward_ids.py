"""The ids of backward operators: those that eager mode computes, see drivers/torch/backward/grad_hooks.cpp."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from amanda.drivers.torch_compile.program.calls import FunctionOp

_BITS = (1 << 64) - 1


def form_of(node: Any, before: Iterable[Any]) -> tuple[int, int]:
    """The features that distinguish a node from others of its operator: its number among them, and the numbers of
    gradients that it takes and returns.

    Arguments: before: the nodes of the operator's inputs.
    """
    own = set(before)
    made, left = {node}, [node]
    while left:
        for following, _ in left.pop().next_functions:
            if following is not None and following not in own and following not in made and _is_numbered(following):
                made.add(following)
                left.append(following)
    number = sorted(each._sequence_nr() for each in made).index(node._sequence_nr())
    return number, len(node._input_metadata) << 32 | len(node.next_functions)


def _is_numbered(node: Any) -> bool:
    return type(node).__name__ != "AccumulateGrad"


def id_of(forward: int, name: str, form: Sequence[int]) -> int:
    number, gradients = form
    return _mix(_mix(_mix(forward, number), _fnv1a(name)), gradients) | 1


def hash_of_function(op: FunctionOp) -> int:
    """The part of ids that names the operator: see drivers/torch/base/op_types.cpp."""
    return _fnv1a(f"{op._schema.name}.{op._schema.overload_name}{op._schema}")


def _mix(hash: int, value: int) -> int:
    hash = (hash ^ value) * 0x9E3779B97F4A7C15 & _BITS
    return hash ^ hash >> 32


def _fnv1a(text: str) -> int:
    hash = 14695981039346656037
    for byte in text.encode():
        hash = (hash ^ byte) * 1099511628211 & _BITS
    return hash
