"""gradient-cleared."""

from __future__ import annotations

from typing import Any

from amanda import OpContext

from ..faulty_steps import OfFaultySteps
from ..gradients import storage, version
from ..rule import Step


class GradientCleared(OfFaultySteps):
    """A backward pass has run, and all gradients of the optimizer are gone, or were set to zero, when it steps.
    `zero_grad()` is between `backward()` and `step()`, or the loss does not depend on the parameters, as after
    ``loss = torch.tensor(loss.item(), requires_grad=True)``. It reports, at the end, an optimizer with two such steps or
    more, and with at most one that was right.
    """

    name = "gradient-cleared"
    sentence = "backward() has left no gradient for step()"
    fix = (
        "call optimizer.zero_grad() before backward(), not after it; compute the loss from results of the model, without "
        "detach(), item(), argmax() and torch.tensor()"
    )
    group = "of few operators"
    ops = ("zero_", "_foreach_zero_")
    bad = """
        for _ in range(4):
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()
    """
    good = """
        for _ in range(4):
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """

    def begin(self) -> None:
        super().begin()
        self._zeroed: dict[int | None, int] = {}  # by storage: the version after it
        self._fault = ""  # of the step that runs

    def look(self, context: OpContext) -> None:
        context.insert_before_op(self._on_zero, inputs=[0])

    def _on_zero(self, written: Any) -> None:
        for one in written if isinstance(written, (list, tuple)) else [written]:
            self._zeroed[storage(one)] = version(one) + 1

    def before_step(self, step: Step) -> None:
        zeroed, self._zeroed = self._zeroed, {}
        self._fault = _fault(step.parameters, zeroed) if step.backward_passes else ""
        if not step.has_closure and step.backward_passes:
            self._steps.add(step, self._fault)

    def after_step(self, step: Step) -> None:
        """Libraries give a step a closure that runs no backward pass, where the program calls `backward()` itself."""
        if step.has_closure and step.backward_passes and not step.passes_inside:
            self._steps.add(step, self._fault)


def _fault(parameters: list[Any], zeroed: dict[int | None, int]) -> str:
    is_trained = any(one.requires_grad for one in parameters)
    if not is_trained or not all(_is_gone(one.grad, zeroed) for one in parameters):
        return ""
    left = "was set to zero" if any(one.grad is not None for one in parameters) else "is None"
    return f"a backward pass has run, and the gradient of each of its {len(parameters)} parameters {left}"


def _is_gone(gradient: Any, zeroed: dict[int | None, int]) -> bool:
    return gradient is None or zeroed.get(storage(gradient)) == version(gradient)
