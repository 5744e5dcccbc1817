"""clip-after-step."""

from __future__ import annotations

import dataclasses
import math
import weakref
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frames import program_line

from ..clipping import clipping_by_norm
from ..gradients import Used, storage
from ..rule import Rule, Step

LEAST = 2  # steps


@dataclasses.dataclass
class _Clips:
    used: list[Used]  # gradients of the last step
    parameters: frozenset[int]  # ids
    stale: Place | None = None  # of a clip since the last step
    wrong: int = 0
    right: int = 0
    place: Place | None = None


class ClipAfterStep(Rule):
    """Gradients are clipped when the step has used them, or when there are none yet, and not between `backward()` and
    `step()`: no step uses what was clipped. It looks at `clip_grad_norm_`, and reports an optimizer with two such steps or
    more, and with no clipping that comes in time. A limit of infinity, which only measures the norm, is no finding.
    """

    name = "clip-after-step"
    sentence = "gradients are clipped after the step that has used them, or before backward()"
    fix = "call clip_grad_norm_ between backward() and step()"
    ops = ("_foreach_norm", "linalg_vector_norm", "norm", "detach_")  # the last makes the norm of no gradients
    bad = """
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    """
    good = """
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), float("inf"))  # the norm for the log
    """

    def begin(self) -> None:
        self._clips: weakref.WeakKeyDictionary[Any, _Clips] = weakref.WeakKeyDictionary()  # by optimizer
        self._all: list[_Clips] = []  # also of optimizers that are gone
        self._in_time = False  # since the last step of any optimizer
        self._was_stale = False  # the last norm that was taken

    def look(self, context: OpContext) -> None:
        frame = clipping_by_norm()
        if frame is not None and _is_limit(frame.f_locals.get("max_norm")):
            place = Place(None, "clip_grad_norm_", context.module_path, program_line(frame.f_back))
            if context.op.__name__ == "detach_":
                context.insert_before_op(self._on_clip_of_nothing, inputs=[], place=place)
            else:
                context.insert_before_op(self._on_clip, inputs=[0], place=place)

    def _on_clip_of_nothing(self, place: Place) -> None:
        frame = clipping_by_norm()
        given = set(map(id, frame.f_locals.get("parameters", ()))) if frame is not None else set()
        for clips in self._clips.values():
            if not given.isdisjoint(clips.parameters):
                clips.stale = clips.stale or place

    def _on_clip(self, given: Any, place: Place) -> None:
        memory = {storage(one) for one in (given if isinstance(given, (list, tuple)) else [given])}
        is_stale = False
        for clips in self._clips.values():
            known = [one for one in clips.used if one.gradient is not None and storage(one.gradient) in memory]
            if known and all(one.is_unchanged for one in known):
                clips.stale = clips.stale or place
                is_stale = True
        is_total = self._was_stale and not isinstance(given, (list, tuple)) and given.dim() < 2  # the norm of norms
        self._in_time = self._in_time or not (is_stale or is_total)
        self._was_stale = is_stale

    def before_step(self, step: Step) -> None:
        clips = self._clips.get(step.optimizer)
        if clips is None:
            return
        if self._in_time or step.has_closure:
            clips.right += 1
        elif clips.stale is not None:
            clips.wrong, clips.place = clips.wrong + 1, clips.place or clips.stale
        clips.stale = None

    def after_step(self, step: Step) -> None:
        clips = self._clips.get(step.optimizer)
        if clips is None:
            clips = self._clips[step.optimizer] = _Clips(step.used, frozenset(map(id, step.parameters)))
            self._all.append(clips)
        clips.used, self._in_time, self._was_stale = step.used, False, False

    def at_end(self, ended_well: bool) -> None:
        for clips in self._all:
            if clips.place is not None and clips.wrong >= LEAST and not clips.right:
                what = "no step uses what was clipped: a backward pass follows, and no clipping before the step"
                self.found(clips.place, what, count=clips.wrong)
        self._all.clear()


def _is_limit(limit: Any) -> bool:
    return isinstance(limit, (int, float)) and math.isfinite(limit)
