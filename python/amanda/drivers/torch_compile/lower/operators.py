"""The operators of lowered graphs: facts for the compiler in addition to those that amanda._torch_compile declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import amanda._torch_compile
from amanda import _core
from amanda.core import scope
from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.lower.layout import Layout
from amanda.drivers.torch_compile.program.calls import Call
from amanda.drivers.torch_compile.program.symbols import is_number, number_of

LOOK = torch.ops.amanda.look_v1.default
EDGE = torch.ops.amanda.edge_v1.default
OPAQUE = torch.ops.amanda.opaque_v1.default
BEGIN = torch.ops.amanda.begin_v1.default

# It runs once, at its place, though nothing uses a result of it.
port.register_effectful_op("amanda::look_v1", port.EffectType.ORDERED)

# A selective checkpoint selects among the program's operators. Others are called again when it computes again.
port.unselected.update(
    getattr(torch.ops.amanda, name).default
    for name in ("look_v1", "edge_v1", "opaque_v1", "begin_v1", "edit_v1", "run_v1", "replay_v1")
)


def _pass(mode: Any, token: torch.Tensor, op: port.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """A selective checkpoint does not know `with_effects`, the operator that runs another operator in its order."""
    return port.with_effects(token, op, *args, **kwargs) if op is LOOK else NotImplemented


for _mode in port.SELECTING_MODES:
    port.with_effects.py_impl(_mode)(_pass)


def _without_autograd(*args: Any, **kwargs: Any) -> Any:
    """PyTorch has this for devices, but not for layouts such as MKLDNN's."""
    with port.BelowAutograd():
        return port.with_effects(*args, **kwargs)


port.with_effects.py_impl(port.DispatchKey.AutogradOther)(_without_autograd)


def _not_shown(*args: Any) -> None:
    scope.note_unseen("hidden", "an operator on batched gradients")


def _refused(*args: Any) -> None:
    raise _core.Error(
        "[compile] a routine that may edit a gradient cannot run on batched gradients (is_grads_batched=True), for which "
        "compiled code has no rule; a routine that returns nothing is left out there"
    )


# torch.autograd.grad(is_grads_batched=True) runs a backward graph on tensors that stand for several.
_library = torch.library.Library("amanda", "IMPL")
_library.impl("look_v1", _not_shown, "Batched")
for _name in "edit_v1", "run_v1", "replay_v1":
    _library.impl(_name, _refused, "Batched")
port.with_effects.fallthrough(port.parse_dispatch_key("VmapMode"))
port.with_effects.py_impl(port.parse_dispatch_key("Batched"))(
    lambda token, op, *args, **kwargs: (token, op(*args, **kwargs))
)

_originals: dict[str, tuple[port.OpOverload, list[Layout]]] = {}


def name_original(op: port.OpOverload, inputs: list[Layout]) -> str:
    """A name that determines a node's results, which are those of `op` on the node's operands. Equal arguments have the
    same name."""
    name = f"{op}{inputs}"
    _originals[name] = op, inputs
    return name


def schema_of(call: Call) -> tuple[str, str]:
    """The name and the overload of the dispatcher's operator whose schema describes the operands. A function has none: its
    backward operator has gradients only, for which the schema says nothing."""
    schema = EDGE._schema if call.is_function else call.op._schema
    return schema.name, schema.overload_name


def _run(
    values: Sequence[torch.Tensor],
    numbers: Sequence[int],
    run: Sequence[torch.Tensor],
    table: torch.Tensor,
    slot: int,
    recorded: Sequence[int],
    original: str,
    autocast: Sequence[int],
) -> list[torch.Tensor]:
    results = list(values)
    if original:
        op, inputs = _originals[original]
        with torch.no_grad(), amanda._torch_compile.Autocast(list(autocast)):
            made = _call(op, [_operand(layout, values, numbers) for layout in inputs])
        results = [leaf for leaf in port.tree_leaves(made) if isinstance(leaf, torch.Tensor)]
    fresh = [torch.empty(result.shape, dtype=result.dtype, device=result.device) for result in results]
    return [*fresh, torch.empty_like(table)]


torch.library.register_fake("amanda::run_v1", _run)


def _call(op: port.OpOverload, operands: list[Any]) -> Any:
    arguments = op._schema.arguments
    positional = [value for a, value in zip(arguments, operands, strict=True) if not a.kwarg_only]
    named = {a.name: value for a, value in zip(arguments, operands, strict=True) if a.kwarg_only}
    return op(*positional, **named)


def _operand(layout: Layout, values: Sequence[torch.Tensor], numbers: Sequence[int]) -> Any:
    if layout is None:
        return None
    if isinstance(layout, list):
        return [_operand(member, values, numbers) for member in layout]
    kind, value = layout
    if kind == "constant":
        return number_of(value) if is_number(value) else value
    return values[value] if kind == "tensor" else numbers[value]
