"""The facts that one run of an operator on fake tensors shows about it."""

from __future__ import annotations

from typing import Any

import torch

from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.program import fakes
from amanda.drivers.torch_compile.program.calls import Call
from amanda.drivers.torch_compile.program.recorder import Seen, tensors_in
from amanda.drivers.torch_compile.program.symbols import Symbols, UntracedError


def traced(seen: Seen, symbols: Symbols) -> tuple[tuple[Any, ...] | None, str]:
    """The operands as symbols; or None, and why not."""
    schema = seen.op._schema
    found = []
    for argument, value in zip(schema.arguments, seen.args, strict=True):
        takes_numbers = port.takes_numbers_as_tensors(schema.name.partition("::")[2])
        try:
            found.append(symbols.ref_of(value, takes_numbers))
        except UntracedError as error:
            return None, f"its operand {argument.name} is {error}"
    return tuple(found), ""


def result_is(call: Call) -> tuple[int | None, ...]:
    """For each result, the argument that it is because the operator writes to it."""
    arguments = call.op._schema.arguments
    written = {i: arguments[i].alias_info.before_set for i in call.mutated}
    found: list[int | None] = []
    for result in call.op._schema.returns:
        alias = result.alias_info
        same = (i for i, names in written.items() if alias is not None and names == alias.before_set)
        found.append(next(same, None))
    return tuple(found)


def requiring(operands: tuple[Any, ...]) -> frozenset[int]:
    """Positions with a tensor that requires a gradient."""
    return frozenset(i for i, value in enumerate(operands) if any(t.requires_grad for t in tensors_in(value)))


def recorded(seen: Seen) -> frozenset[int]:
    """Positions of the results that the operator records a derivative for."""
    return frozenset(i for i, value in enumerate(seen.outputs) if any(_is_recorded(seen, t) for t in tensors_in(value)))


def _is_recorded(seen: Seen, result: torch.Tensor) -> bool:
    if fakes.node_of(result) is None:
        return False
    # An operator may return its argument as it is; what it writes to has a new node.
    returned = [(a, before) for a, before in zip(seen.args, seen.inputs, strict=True) if a is result]
    return all(a is not before for a, before in returned)


_SHAPING = ("ViewBackward0", "UnsafeViewBackward0")


def backward_of(seen: Seen) -> Any:
    """The autograd node of the first result that has one; None if nothing is recorded.

    An operator that computes may give its result another shape at its end, as linear does. It is then identified by the
    node that computes.
    """
    node: Any = next((fakes.node_of(result) for result in tensors_in(seen.outputs) if _is_recorded(seen, result)), None)
    outside = {fakes.node_of(known) for known in tensors_in(seen.inputs)}
    while node is not None and type(node).__name__ in _SHAPING:
        (before, _), *others = node.next_functions
        if others or before is None or before in outside or type(before).__name__ == "AccumulateGrad":
            break
        node = before
    return node


def unshowable(seen: Seen) -> str:
    """The reason why no tap can be put next to it; "" if one can."""
    if seen.in_transform:
        return "it runs inside a transform of torch.func, such as vmap, for which taps have no rule"
    operands = (*tensors_in(seen.args), *tensors_in(seen.outputs))
    subclass = next(filter(port.is_traceable_wrapper_subclass, operands), None)
    if subclass is not None:
        return f"it runs on a {type(subclass).__name__}, which the compiler takes apart"
    return ""
