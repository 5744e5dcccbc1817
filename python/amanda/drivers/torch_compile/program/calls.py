"""The operators of Dynamo's graph: the dispatcher calls that its nodes make."""

from __future__ import annotations

import dataclasses
import functools
from types import CodeType
from typing import Any

from torch import fx

from amanda.drivers.torch_compile import port


@dataclasses.dataclass(eq=False, frozen=True, slots=True)
class Ref:
    """A symbol: the value of a node of Dynamo's graph, a result of an earlier call of the same node, or, with a path, a
    member of such a tuple or list."""

    node: fx.Node | None
    path: tuple[int, ...] = ()
    call: Call | None = None


@dataclasses.dataclass(eq=False, frozen=True, slots=True)
class Constant:
    """A number or a list that PyTorch makes a tensor of, where an operator takes tensors only, as in `x[[0, 2]] = 3`."""

    value: Any
    dtype: Any


@dataclasses.dataclass(eq=False, frozen=True, slots=True)
class Origin:
    """An input of the graph that may be a part of ids: a parameter, a buffer, or another leaf that requires a gradient.
    An operand is that tensor, or a view of it."""

    position: int
    tensor: Any
    is_view: bool


@dataclasses.dataclass(frozen=True)
class FunctionOp:
    """A `torch.autograd.Function`, as the operator that has a backward operator: the dispatcher does not know it."""

    name: str
    tags: tuple[Any, ...] = ()

    @functools.cached_property
    def _schema(self) -> Any:
        return port.parse_schema(f"autograd::{self.name}(...) -> ...")


@dataclasses.dataclass(eq=False, slots=True)
class Call:
    """An operator, as eager mode shows it: an outermost call of the dispatcher, or a `torch.autograd.Function`.

    Results come by schema position, as `outputs`; so do `args` and `inputs`.
    """

    node: fx.Node
    index: int  # among the calls of its node
    op: port.OpOverload  # or a FunctionOp
    #: Refs for tensors and for numbers that are symbols, Constants, lists of them, and plain values. None if one could
    #: not be traced to a symbol; `unseen` says which.
    args: tuple[Any, ...] | None
    #: The operands that analyses see: fake tensors, except that parameters and buffers are themselves.
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    #: Like `inputs`, but parameters are fake, too.
    fakes: tuple[Any, ...]
    #: Like `fakes`, but operands that the operator has written to are as it has left them.
    run_inputs: tuple[Any, ...]
    #: Python frames, as code and f_lasti, from the call outwards to the node. Empty if the node itself is the call.
    frames: tuple[tuple[CodeType, int], ...]
    #: The autograd node of the first differentiable result, such as "AddmmBackward0"; "" if nothing is recorded.
    backward: str = ""
    #: See backward_ids.form_of().
    backward_form: tuple[int, int] = (0, 0)
    #: The inputs of the graph among the operands, in bodies, too: parts of ids.
    origins: tuple[Origin, ...] = ()
    #: For each result, the argument that it is, because the operator writes to it; None if the result is new, or a
    #: view.
    result_is: tuple[int | None, ...] = ()
    #: A result shares memory with an argument that the operator does not write to.
    result_is_view: bool = False
    #: Positions that require a gradient: of arguments, and of results.
    differentiable: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    #: Positions of arguments, and of results, whose memory is written to by later operators.
    written_later: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    #: Those of the arguments that it writes to through which others see the change: inputs of the graph, and tensors
    #: that are used again, not as a result of this operator. If there are none, it may run on a copy.
    writes_seen: frozenset[int] = frozenset()
    #: The graph returns its result, or a view of it; if it is a view itself, as a view that shares memory with others.
    returned: bool = False
    returned_as_view: bool = False
    #: The reason why tools cannot be shown the call at all; "" if they can.
    unseen: str = ""
    #: The reason why tools cannot be shown its backward operator; "" if they can, provided that there is one.
    backward_unseen: str = ""

    @property
    def is_function(self) -> bool:
        """True for a `torch.autograd.Function`, of which tools are shown the backward operator alone. Its arguments are
        the tensors among those of `apply`."""
        return isinstance(self.op, FunctionOp)

    @property
    def name(self) -> str:
        """The operator's name, such as "aten::linear"."""
        return str(self.op._schema.name)

    @property
    def mutated(self) -> tuple[int, ...]:
        """Positions of the arguments that it writes to."""
        arguments = self.op._schema.arguments
        return tuple(i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)


def arguments_of(call: Call, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by schema position, as Python passes them."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for argument, value in zip(call.op._schema.arguments, args, strict=True):
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return tuple(positional), named
