"""clip-before-unscale."""

from __future__ import annotations

import weakref
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..clipping import clipping_by_norm
from ..rule import Rule, Step
from ..scalers import calling_scaler


class ClipBeforeUnscale(Rule):
    """Gradients of a loss that `GradScaler` has scaled are clipped before they are unscaled. The limit is compared with a
    norm that is some thousand times too large, so almost nothing is left of each gradient."""

    name = "clip-before-unscale"
    sentence = "gradients are clipped while they are scaled"
    fix = "call scaler.unscale_(optimizer) before clip_grad_norm_"
    ops = ("mul", "_foreach_norm", "linalg_vector_norm", "norm")
    bad = """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    """
    good = """
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    """

    def begin(self) -> None:
        self._scalers: weakref.WeakSet[Any] = weakref.WeakSet()  # that have scaled a loss since the last step

    def look(self, context: OpContext) -> None:
        if context.op.__name__ == "mul":
            if calling_scaler() is not None:
                context.insert_before_op(self._on_scale, inputs=[])
        elif clipping_by_norm() is not None:
            place = Place(None, "clip_grad_norm_", context.module_path, context.source)
            context.insert_before_op(self._on_clip, inputs=[], place=place)

    def _on_scale(self) -> None:
        scaler = calling_scaler()
        if scaler is not None:
            self._scalers.add(scaler)

    def _on_clip(self, place: Place) -> None:
        for scaler in self._scalers:
            states = list(scaler._per_optimizer_states.values())
            if not any(getattr(state["stage"], "name", "") == "UNSCALED" for state in states):
                self.found(place, "no unscale_ has run since the loss was scaled")

    def after_step(self, step: Step) -> None:
        self._scalers.clear()
