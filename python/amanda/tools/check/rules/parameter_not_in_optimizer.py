"""parameter-not-in-optimizer."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from amanda import OpContext, ops
from amanda.toolkit import Place

from ..gradients import few
from ..rule import Rule, Step

LOOKED_AT = 6  # steps


@dataclasses.dataclass
class _Trained:
    parameter: weakref.ref[Any]
    place: Place
    name: str
    version: int
    steps: int = 0  # at which it had this version
    is_written: bool = False

    def see(self) -> None:
        """A parameter may be gone at the end of the program."""
        parameter = self.parameter()
        if parameter is not None:
            self.steps += 1
            self.is_written = self.is_written or parameter._version != self.version


class ParameterNotInOptimizer(Rule):
    """A parameter gets gradients, no optimizer that steps has it, and nothing else writes to it, so that it keeps its first
    value. Examples are a layer that replaces another one after the optimizer was made, and layers in a list of Python,
    which `parameters()` does not have.

    Freeze what is not to be trained: `requires_grad_(False)` also saves the time for its gradient.
    """

    name = "parameter-not-in-optimizer"
    sentence = "a parameter gets gradients, and no optimizer has it"
    fix = (
        "make the optimizer after the model is complete, keep layers in nn.ModuleList, not in a list, or freeze the "
        "parameter: requires_grad_(False)"
    )
    ops = (*ops.linear_like, *ops.convolution, *ops.transposed_convolution, "*norm*", "embedding*", "mul", "add", "prelu",
           "lstm", "gru", "rnn_*", "bilinear")  # fmt: skip
    bad = """
        model[0] = nn.Linear(4, 8)
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
    """
    good = """
        model[0] = nn.Linear(4, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
    """

    def begin(self) -> None:
        self._used: dict[int, tuple[weakref.ref[Any], Place, str]] = {}  # parameters of operators, by id
        self._with_gradient: dict[int, _Trained] = {}
        self._in_optimizers: set[int] = set()

    def look(self, context: OpContext) -> None:
        for name, operand in zip(context.parameter_names, context.inputs, strict=False):
            if isinstance(name, str) and getattr(operand, "is_leaf", False) and operand.requires_grad:
                known = self._used.get(id(operand))
                if known is None or known[0]() is not operand:
                    self._used[id(operand)] = weakref.ref(operand), Place.of(context), name

    def before_step(self, step: Step) -> None:
        if not step.has_closure:
            self._look_at_gradients(step)

    def after_step(self, step: Step) -> None:
        if step.has_closure:
            self._look_at_gradients(step)

    def _look_at_gradients(self, step: Step) -> None:
        for known in self._with_gradient.values():
            known.see()
        if step.number >= LOOKED_AT:
            return
        self._in_optimizers.update(map(id, step.parameters))
        for key, (reference, place, name) in self._used.items():
            parameter = reference()
            if parameter is None or key in self._in_optimizers or parameter.grad is None:
                continue
            trained = self._with_gradient.get(key)
            if trained is None or trained.parameter() is not parameter:
                self._with_gradient[key] = _Trained(reference, place, name, parameter._version)

    def at_end(self, ended_well: bool) -> None:
        found: dict[tuple[str, str], list[_Trained]] = {}  # by operator and line: one for all layers of a kind
        for key, one in self._with_gradient.items():
            one.see()
            if one.steps and not one.is_written and key not in self._in_optimizers:
                found.setdefault((one.place.name, one.place.source), []).append(one)
        for trained in found.values():
            names = few([one.name for one in trained])
            self.found(trained[0].place, f"{names} got gradients, and kept their first values")
        self._with_gradient.clear()
