"""CompiledGradients: the gradients of parameters that compiled functions read."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place, Skips, arrays_in, locks
from amanda.toolkit.arrays import known

from .parameters import Gradient, Watched


class CompiledGradients:
    """Asks the nodes that accumulate gradients: a compiled function has one node for all its operators.

    The step in which a function is compiled is left out, for parameters that are not watched.
    """

    def __init__(self, watched: Watched, skips: Skips) -> None:
        self._watched, self._skips = watched, skips
        self._places: dict[str, Place] = {}  # by parameter: of an operator in a compiled function that reads it
        self._variables: dict[str, weakref.ref[Any]] = {}
        self._lock = locks.lock()  # guards the next one: a backward pass may run on several threads
        self._norms: dict[str, list[float]] = {}  # of this step, in the order in which the backward pass reached them
        self._hooks: list[Any] = []
        self._nodes: list[Any] = []  # they live as long as somebody holds them

    def analyze(self, context: OpContext) -> None:
        """An analysis routine of operators of compiled functions."""
        for tensor in _leaves(context):
            name = self._watched.name_of(tensor)
            if name and name not in self._places:
                self._places[name] = Place.of(context)
                self._variables[name] = weakref.ref(tensor)

    def begin(self) -> None:
        self.drop()
        if "torch._dynamo" not in sys.modules:
            return
        import torch

        asked = {**dict(self.variables()), **self._watched.named()}
        for name, parameter in asked.items():
            if not (parameter.is_leaf and parameter.requires_grad):
                continue
            node: Any = torch.autograd.graph.get_gradient_edge(parameter).node
            self._nodes.append(node)
            self._hooks.append(node.register_prehook(functools.partial(self._accumulates, name)))

    def drop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._nodes.clear()
        with self._lock:
            self._norms.clear()

    def variables(self) -> Iterator[tuple[str, Any]]:
        """The parameters, with their names."""
        for name, reference in self._variables.items():
            variable = reference()
            if variable is not None:
                yield name, variable

    def gradients(self, others: set[str]) -> list[Gradient]:
        """Those of this step, without the parameters in `others`. A norm is the mean over backward passes."""
        with self._lock:
            norms = {name: sum(found) / len(found) for name, found in self._norms.items() if name not in others}
        variables = dict(self.variables())
        return [
            Gradient(name, self._places[name], norm, variables[name].numel(), variables[name].dim())
            for name, norm in norms.items()
            if name in variables
        ]

    def _accumulates(self, name: str, gradients: tuple[Any, ...]) -> None:
        """A hook of an AccumulateGrad node."""
        if name not in self._places or gradients[0] is None:
            return
        norm = self._skips.read(gradients[0], lambda array, arrays: arrays.norm(arrays.detached(array)))
        if norm is not None:
            with self._lock:
                self._norms.setdefault(name, []).append(norm)


def _leaves(context: OpContext) -> Iterator[Any]:
    """The operands, and members of lists, of which autograd accumulates a gradient."""
    for operand in context.inputs:
        for array in arrays_in(operand):
            if not known(array).is_symbolic(array) and array.is_leaf and array.requires_grad:
                yield array
