"""Vocabulary: the words that stand for a driver's operators, and what belongs to them. It knows no framework."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from amanda.driver import layouts

if TYPE_CHECKING:
    from amanda.core.op_context import OpContext

Roles = Mapping[str, str]
"""Roles, each with the name of the input that has it: {"input": "input", "weight": "filter"}."""

Words = Mapping[str, Mapping[str, Roles]]
"""Words, each with the full names of the operators that it stands for, and the roles of their inputs."""

WEIGHTED: Final = (
    *("linear", "matmul", "conv1d", "conv2d", "conv3d", "depthwise_conv2d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
)
"""The words of operators that multiply by a weight."""


def each(roles: Roles, *operators: str) -> dict[str, Roles]:
    """The same roles for several operators."""
    return dict.fromkeys(operators, roles)


class Vocabulary:
    """The words of one driver's operators. It is used before the driver is loaded: it imports no framework before `keys`
    is called.

    Words are in PyTorch's spelling. An operator has several words if its operands decide between them, as a convolution's
    rank does; these give the same roles. `word` then says which.
    """

    namespace: ClassVar[str]
    """The first part of `OpContext.namespace`: "pytorch"."""
    words: ClassVar[Words]
    weight_layouts: ClassVar[Mapping[str, str]] = {}
    """By word, of convolutions: "OIHW". O and I are channels of the output and the input, M a multiplier of channels."""

    def words_for(self, name: str) -> tuple[str, ...]:
        """The words that stand for an operator, by its full name."""
        return self._by_operator.get(name, ((), {}))[0]

    @functools.cached_property
    def prefixes(self) -> frozenset[str]:
        """The namespaces of these operators: "aten"."""
        return frozenset(name.partition("::")[0] for name in self._by_operator)

    def word(self, context: OpContext, words: Sequence[str]) -> str:
        """The one of these words that stands for the operator here."""
        return words[0]

    def rank(self, value: Any) -> int | None:
        """The number of dimensions of an input; None if it is not known."""
        raise NotImplementedError

    def is_parameter(self, context: OpContext, position: int) -> bool:
        """True if an input is a parameter of the model."""
        return context.parameter_names[position] is not None

    def is_transposed(self, context: OpContext, word: str, on_the_left: bool) -> bool | None:
        """True if a product takes its left factor, or its right one, transposed; None if it is not known."""
        return False

    def layout(self, context: OpContext, word: str, input: Any) -> str | None:
        """The dimensions of the input and output of an operator with channels: "NCHW"; None if they are not known."""
        return None

    def keys(self, context: OpContext) -> dict[str, Any]:
        """The keys that the mapping writes into the context of a forward operator; empty if no word stands for it."""
        words, roles = self._by_operator.get(context.op.name, ((), {}))
        if not words:
            return {}
        word, names, inputs = self.word(context, words), context.op.input_names, context.inputs
        positions = {role: names.index(name) for role, name in roles.items()}
        if context.is_forward():
            positions = {role: position for role, position in positions.items() if inputs[position] is not None}
        if word == "matmul":
            for weight, other in (("right", "left"), ("left", "right")):
                if weight in positions and self.is_parameter(context, positions[weight]):
                    positions |= {"weight": positions[weight], "input": positions[other]}
                    break
        found: dict[str, Any] = {"op_type": word, "roles": positions}
        if "input" in positions and (layout := self.layout(context, word, inputs[positions["input"]])):
            found["layout"] = layout
        if "weight" in positions and (layout := self.weight_layout(context, word, positions)):
            found["weight_layout"] = layout
        return found

    def weight_layout(self, context: OpContext, word: str, positions: Mapping[str, int]) -> str | None:
        """The dimensions of the weight; None if they are not known."""
        weight = context.inputs[positions["weight"]]
        if word not in ("linear", "matmul"):
            return self.weight_layouts.get(word)
        rank = None if weight is None else self.rank(weight)
        on_the_left = positions["weight"] == positions.get("left")
        transposed = self.is_transposed(context, word, on_the_left)
        return None if rank is None or transposed is None else layouts.factor(rank, on_the_left, transposed)

    def grad_roles(self, context: OpContext) -> dict[str, int]:
        """The positions of `grad_inputs` by role, in a context of a backward operator whose forward operator has keys.
        Here, a backward operator has a position for each input of its forward operator."""
        grad_inputs = context.grad_inputs if context.has_grad_inputs() else ()
        return {
            role: position
            for role, position in context["roles"].items()
            if position < len(grad_inputs) and grad_inputs[position] is not None
        }

    @functools.cached_property
    def _by_operator(self) -> dict[str, tuple[tuple[str, ...], Roles]]:
        found: dict[str, tuple[tuple[str, ...], Roles]] = {}
        for word, operators in self.words.items():
            for name, roles in operators.items():
                before, _ = found.get(name, ((), roles))
                found[name] = (*before, word), roles
        return found
