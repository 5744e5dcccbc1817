"""A `torch.autograd.Function` in a graph, as an operator that has a backward operator and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import fx

from amanda.drivers.torch_compile.places import capture
from amanda.drivers.torch_compile.program import facts
from amanda.drivers.torch_compile.program.calls import Call, FunctionOp, Origin, Ref
from amanda.drivers.torch_compile.program.recorder import tensors_in


def call_of(
    node: fx.Node, env: Mapping[fx.Node, Any], value: Any, origins: Callable[[int, Any], Iterable[Origin]]
) -> Call | None:
    """The function that a node applies; None if autograd records none.

    Arguments: env: the values of the nodes before it. value: the node's own. origins: those of an argument, by its
    position and value.
    """
    results = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not any(tensor.requires_grad for tensor in tensors_in(results)):
        return None
    applied = capture.applied_by(node)
    name = applied.name if applied else "Function"
    operands = [node.args[2 + operand] for _, operand in applied.operands] if applied else []
    positions = [position for position, _ in applied.operands] if applied else []
    fakes = tuple(env[operand] for operand in operands)
    call = Call(
        node,
        0,
        FunctionOp(name),
        tuple(map(Ref, operands)),
        inputs=fakes,
        outputs=results,
        fakes=fakes,
        run_inputs=fakes,
        frames=(),
        origins=tuple(itertools.chain.from_iterable(map(origins, positions, fakes))),
        result_is=(None,) * len(results),
        backward=f"{name}Backward",
        backward_form=(0, len(results) << 32 | len(operands)),
    )
    call.differentiable = facts.requiring(fakes), facts.requiring(results)
    if applied is None:
        call.unseen = "the driver does not know which operands of the compiled code are its arguments"
    elif applied.num_results != len(results):
        call.unseen = "one of its results is no tensor"
    elif node.kwargs.get("dirty_idx"):
        call.unseen = "it writes to its operands, to which gradients come through others, too"
    return call
