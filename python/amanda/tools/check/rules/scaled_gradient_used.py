"""scaled-gradient-used."""

from __future__ import annotations

import weakref
from typing import Any

from amanda import OpContext

from ..clipping import clipping
from ..gradients import version
from ..rule import Rule, Step
from ..scalers import calling_scaler

LEAST = 2  # steps in a row


class ScaledGradientUsed(Rule):
    """`GradScaler` has scaled the loss, and the program calls `step()` of the optimizer, not `scaler.step(optimizer)`. The
    gradients are some ten thousand times too large, and those with infinities are used, too. Adam, which divides by the
    size of gradients, hides it; decay, `eps` and clipping are wrong.

    A program that calls `unscale_` first, or changes the gradients itself, is no finding. Nor is a step after a backward
    pass of a loss that was not scaled, as of another optimizer. Seen in two steps in a row.
    """

    name = "scaled-gradient-used"
    sentence = "the step uses gradients of a scaled loss"
    fix = "call scaler.step(optimizer) and scaler.update()"
    ops = ("mul", "_foreach_norm", "linalg_vector_norm", "norm")  # as "clip-before-unscale"
    counts_backward = True
    bad = """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            optimizer.step()
    """
    good = """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """

    def begin(self) -> None:
        self._scalers: weakref.WeakSet[Any] = weakref.WeakSet()  # that have scaled a loss since the last step
        self._losses = 0  # that they have scaled
        self._clipped: list[bool] = []  # since the last step: of what was clipped, whether it was as backward() made it
        self._in_a_row: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # by optimizer

    def look(self, context: OpContext) -> None:
        if context.op.__name__ != "mul":
            if any(clipping()):
                context.insert_before_op(self._on_clip, inputs=[0])
        elif calling_scaler() is not None:
            context.insert_before_op(self._on_scale, inputs=[])

    def _on_clip(self, given: Any) -> None:
        self._clipped.append(not any(map(version, given if isinstance(given, (list, tuple)) else [given])))

    def _on_scale(self) -> None:
        scaler = calling_scaler()
        if scaler is not None:
            self._scalers.add(scaler)
            self._losses += 1

    def before_step(self, step: Step) -> None:
        scalers = list(self._scalers)
        clipped, self._clipped = self._clipped, []
        losses, self._losses = self._losses, 0
        self._scalers.clear()
        if not scalers and step.optimizer not in self._in_a_row:
            return
        gradients = [one.grad for one in step.parameters if one.grad is not None] if scalers else []
        is_as_made = bool(gradients) and (all(clipped) if clipped else not version(gradients[0]))
        is_scaled = 0 < step.backward_passes <= losses  # each backward pass
        is_wrong = is_as_made and is_scaled and not step.has_closure and calling_scaler() is None
        for scaler in scalers:
            state = scaler._per_optimizer_states.get(id(step.optimizer), {})
            is_wrong = is_wrong and getattr(state.get("stage"), "name", "READY") == "READY"
        count = self._in_a_row[step.optimizer] = self._in_a_row.get(step.optimizer, 0) + 1 if is_wrong else 0
        if count >= LEAST:
            what = "GradScaler.scale has multiplied the loss, and neither unscale_ nor GradScaler.step has run"
            self.found(step.place, what, count=LEAST if count == LEAST else 1)
