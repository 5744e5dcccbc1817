"""The applications of a `torch.autograd.Function` in Dynamo's graphs, noted while Dynamo traces the program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import fx

from amanda.drivers.torch_compile import port


@dataclasses.dataclass(slots=True)
class Applied:
    """A function that a node applies.

    `operands`: for each tensor among the arguments of `apply`, its position there, and the operand of the node.
    `num_results`: -1 if one of them is no tensor.
    """

    name: str
    operands: tuple[tuple[int, int], ...]
    num_results: int = -1


class Application:
    """A call of `apply` that Dynamo traces, with its arguments as Dynamo has them."""

    def __init__(self, name: str, args: Sequence[Any]) -> None:
        self._name, self._args = name, args
        self._made: list[Applied] = []

    def by(self, tracer: Any, node: fx.Node) -> Applied | None:
        """The function that the node applies; None if it is another node, or gets a tensor otherwise than `apply` does."""
        if getattr(node.target, "_name", "") != "autograd_function_apply":
            return None
        operands, found = list(node.args[2:]), []
        for position, arg in enumerate(self._args):
            if not isinstance(arg, port.TensorVariable):
                continue
            proxy = arg.as_proxy()
            own = tracer.lifted_freevars.get(proxy, proxy).node
            if own not in operands:
                return None
            found.append((position, operands.index(own)))
        if len({operand for _, operand in found}) != len(found):
            return None
        self._made.append(Applied(self._name, tuple(found)))
        return self._made[-1]

    def end(self, result: Any) -> None:
        """`result`: of `apply`, as Dynamo has it."""
        results = [result] if isinstance(result, port.TensorVariable) else getattr(result, "items", [None])
        if isinstance(results, list | tuple) and all(isinstance(each, port.TensorVariable) for each in results):
            for applied in self._made:
                applied.num_results = len(results)
