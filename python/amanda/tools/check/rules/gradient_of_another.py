"""gradient-of-another."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from amanda import OpContext

from ..gradients import Used, name_of, sampled, storage
from ..rule import Rule, Step

LEAST = 2  # steps in a row


class GradientOfAnother(Rule):
    """In adversarial networks, the generator's loss leaves gradients in the discriminator, too. If they are not cleared
    before the discriminator's own backward pass, its step uses the sum of both: half of it makes the discriminator worse.
    So it is with the critic in the loss of an actor.

    It reports an optimizer of which all gradients were left by a backward pass before the step of another optimizer, and
    were added to after it. Each optimizer has cleared its gradients once, before or after its step. Seen in two steps
    in a row. Where only some of the gradients were left, it says nothing. An encoder that several losses share, each with
    an optimizer of its own, is meant to get the sum.
    """

    name = "gradient-of-another"
    sentence = "a step also uses the gradient of a loss that another optimizer has stepped for"
    fix = "call zero_grad() of this optimizer right before backward() of its own loss"
    is_advice = True
    ops = ("zero_", "_foreach_zero_")
    counts_backward = True
    bad = """
        critic = nn.Linear(3, 1)
        of_critic = torch.optim.SGD(critic.parameters(), 0.1)
        for _ in range(4):
            made = model(x)
            critic(made).mean().neg().backward()
            optimizer.step()
            optimizer.zero_grad()
            critic(made.detach()).mean().backward()
            of_critic.step()
            of_critic.zero_grad()
    """
    good = """
        critic = nn.Linear(3, 1)
        of_critic = torch.optim.SGD(critic.parameters(), 0.1)
        for _ in range(4):
            made = model(x)
            optimizer.zero_grad()
            critic(made).mean().neg().backward()
            optimizer.step()
            of_critic.zero_grad()
            critic(made.detach()).mean().backward()
            of_critic.step()
    """

    def begin(self) -> None:
        self._optimizers: weakref.WeakKeyDictionary[Any, _Optimizer] = weakref.WeakKeyDictionary()

    def look(self, context: OpContext) -> None:
        context.insert_before_op(self._on_clear, inputs=[0])

    def _on_clear(self, written: Any) -> None:
        cleared = {storage(one) for one in (written if isinstance(written, (list, tuple)) else [written])}
        for known in self._optimizers.values():
            if any(one.gradient is not None and storage(one.gradient) in cleared for one in known.left):
                known.left = []

    def before_step(self, step: Step) -> None:
        known = self._optimizers.get(step.optimizer)
        if known is None or step.has_closure:
            return
        is_left = bool(step.backward_passes and known.left) and all(one.was_added_to for one in known.left)
        if not is_left or _with_gradient(step.parameters) != known.count:
            known.in_a_row = 0
            return
        known.in_a_row += 1
        if known.in_a_row >= LEAST:
            what = f"{known.left[0].name} had a gradient before {known.by} stepped, and was added to"
            self.found(step.place, what, count=LEAST if known.in_a_row == LEAST else 1)

    def after_step(self, step: Step) -> None:
        mine = self._optimizers.setdefault(step.optimizer, _Optimizer(weakref.ref(step.optimizer)))
        mine.used, mine.left = [weakref.ref(one.gradient) for one in step.used], []
        if len(self._optimizers) < 2:
            return
        own = set(map(id, step.parameters))
        for known in self._optimizers.values():
            optimizer = known.optimizer()
            if known is not mine and optimizer is not None and not known.left:
                parameters = [one for group in optimizer.param_groups for one in group["params"]]
                left = sampled(parameters) if own.isdisjoint(map(id, parameters)) else []
                if left and not any(known.has_used(one.gradient) for one in left):
                    known.count = _with_gradient(parameters)
                    known.left, known.by = left, f"{type(step.optimizer).__name__} of {name_of(step.parameters[0])}"


@dataclasses.dataclass
class _Optimizer:
    optimizer: weakref.ref[Any]
    used: list[weakref.ref[Any]] = dataclasses.field(default_factory=list)  # gradients of its last step
    left: list[Used] = dataclasses.field(default_factory=list)  # new ones, when another optimizer has stepped
    count: int = 0  # of parameters that had one then
    by: str = ""  # that one
    in_a_row: int = 0

    def has_used(self, gradient: Any) -> bool:
        return any(one() is gradient for one in self.used)


def _with_gradient(parameters: list[Any]) -> int:
    return sum(one.grad is not None for one in parameters)
