"""pointwise-chain."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from amanda import OpContext, ops
from amanda.toolkit import Place

from ..gradients import storage
from ..memory import Memory
from ..rule import Rule

_ARITHMETIC = (
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "pow",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "neg",
    "abs",
    "clamp",
    "square",
)
_BETWEEN = (*ops.linear_like, *ops.convolution, *ops.attention, *ops.normalization)
LEAST = 6  # operators


class _Chain(NamedTuple):
    result: Any  # its memory
    module: str
    names: tuple[str, ...]


class PointwiseChain(Rule):
    """Six pointwise operators or more follow each other, and each reads the result of the one before: each starts a kernel,
    and reads and writes memory. One kernel could do all. They are in one module, or in none, and no product or
    normalization runs between them. Operators of optimizers are left out."""

    name = "pointwise-chain"
    sentence = "pointwise operators that one kernel could do"
    fix = "call the function of torch.nn.functional that does all, or compile this one: torch.compile"
    is_advice = True
    ops = (*_ARITHMETIC, *ops.activation, *_BETWEEN)
    with_outputs = True
    bad = """
        hidden = model[0](x)
        model[2](0.5 * hidden * (1 + torch.tanh(0.79788456 * (hidden + 0.044715 * hidden.pow(3))))).sum().backward()
    """
    good = """
        model[2](F.gelu(model[0](x), approximate="tanh")).sum().backward()
    """

    def begin(self) -> None:
        self._chains: dict[int | None, _Chain] = {}  # by the result's storage
        self._longest: dict[tuple[str, str], tuple[Place, tuple[str, ...]]] = {}  # by module and file

    def look(self, context: OpContext) -> None:
        from amanda.toolkit.optimizer_phase import in_optimizer

        result = context.outputs[0]
        if context.op.__name__ in _BETWEEN:
            self._chains.clear()
            return
        if in_optimizer(sys._getframe()) or getattr(result, "ndim", 0) == 0 or storage(result) is None:
            return
        before: tuple[str, ...] = ()
        place = Place.of(context)
        for one in context.inputs:
            known = self._chains.get(storage(one))
            is_same = known is not None and known.module == place.module_path and known.result.is_of(one)
            if known is not None and is_same and one.shape == result.shape:
                before = max(before, known.names, key=len)
        names = (*before, context.op.__name__)
        self._chains[storage(result)] = _Chain(Memory(result), place.module_path, names)
        key = place.module_path, place.source.rpartition(":")[0]
        if len(names) >= LEAST and len(names) > len(self._longest.get(key, (None, ()))[1]):
            self._longest[key] = place, names

    def at_end(self, ended_well: bool) -> None:
        for place, names in self._longest.values():
            self.found(place, f"{len(names)}: {', '.join(names)}")
        self.begin()
