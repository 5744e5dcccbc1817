"""Alarms: divergence, values that are not finite, vanishing, exploding and missing gradients, dead units."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Literal

from amanda.toolkit import notebooks
from amanda.toolkit.frames import line_in_cell, short_line
from amanda.toolkit.places import Place
from amanda.tools.cuts import Finding, named

from .dead_units import Dead
from .parameters import Gradient
from .series import Point

Kind = Literal[
    "divergence",
    "nonfinite",
    "vanishing gradient",
    "exploding gradient",
    "no gradient",
    "zero gradient",
    "no update",
    "dead units",
]
MOST_UNITS = 8  # that a message lists
_NOWHERE = Place(None, "", "", "")


class HistoryWarning(UserWarning):
    """A training run goes wrong; see `Alarm`."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits at which `History` raises an alarm. Steps are those that are observed. A condition that was reported
    is reported again only if it did not hold in `window` steps.

    Arguments:
        patience: the number of steps in a row for which a condition must hold; NaNs in results and in losses count at
            once.
        growth: "divergence": a loss, or the norm of all gradients, is further from 0 than this factor times the median
            of the last `window` steps in which it was not.
        window: see `growth`. Nothing is judged as divergence before there are five.
        vanishing: "vanishing gradient": the root mean square of a weight's gradient is less than this fraction of that of
            the weight that the backward pass reaches first, the one next to the loss.
        exploding: "exploding gradient": it is more than this multiple of that of the parameters reached up to there.
        dead: "dead units": a unit of a ReLU is zero for all samples of this number of steps in a row.

    Raises:
        ValueError: a number has no meaning here.
    """

    patience: int = 3
    growth: float = 10.0
    window: int = 50
    vanishing: float = 1e-7
    exploding: float = 1e4
    dead: int = 20

    def __post_init__(self) -> None:
        for name, least in (("patience", 1), ("window", MIN_KNOWN), ("dead", 1)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise ValueError(
                    f"[history] {name}= is a number of steps, {least} or more, got {getattr(self, name)!r}"
                )
        for name in ("growth", "exploding"):
            if not getattr(self, name) > 1:
                raise ValueError(f"[history] {name}= is a factor greater than 1, got {getattr(self, name)!r}")
        if not 0 <= self.vanishing < 1:
            raise ValueError(f"[history] vanishing= is a fraction, 0 or more and less than 1, got {self.vanishing!r}")


MIN_KNOWN = 5  # values before a median means something


@dataclasses.dataclass(frozen=True)
class Alarm:
    """Something that goes wrong, where, and since when."""

    kind: Kind
    subject: str  # a parameter, "0.weight"; a scalar, "loss"; an operator's label
    began: int  # the step
    step: int  # in which it was noticed
    op_id: int | None  # of the operator that computes, or reads, the subject; the next four are None or "" for scalars
    name: str  # "aten::linear"
    module_path: str
    source: str  # file:line
    value: float | None  # in `step`
    limit: float | None
    units: tuple[int, ...] = ()  # of "dead units"
    text: str = ""  # what is wrong, in words

    def __str__(self) -> str:
        parts = [self.name, f"in {self.module_path}" if self.module_path else "", f"({line_in_cell(self.source)})"]
        where = f"; {' '.join(filter(None, parts))}" if self.name else ""
        return f"{self.kind} since step {self.began}: {self.text}{where}"

    def _repr_html_(self) -> str:
        head, _, rest = str(self).partition(": ")
        return notebooks.together([notebooks.heading(f"{head}: {self.subject}"), notebooks.text(rest)])


class Detectors:
    """The detectors of conditions that raise alarms, step by step."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: dict[str, collections.deque[float]] = {}  # by scalar: values that were no divergence
        self._since: dict[tuple[Kind, str], tuple[int, int]] = {}  # how long a condition holds, and since which step
        self._absent: dict[tuple[Kind, str], int] = {}  # of conditions that were reported: steps in which they did not

    def look(
        self,
        step: int,
        points: Sequence[Point],
        gradients: Sequence[Gradient],
        dead: Sequence[Dead],
        cuts: Sequence[Finding] = (),
    ) -> list[Alarm]:
        found = [*self._results(step, points), *self._scalars(step, points)]
        found += [*self._nonfinite_gradients(step, gradients), *self._sizes(step, gradients)]
        return [*found, *self._cuts(step, cuts), *(_dead(step, one) for one in dead)]

    def _holds(self, kind: Kind, subject: str, step: int, condition: bool, patience: int) -> int | None:
        """The step since which the condition has held, if it is to be reported in this step."""
        key = kind, subject
        if not condition:
            self._since.pop(key, None)
            if key in self._absent:
                self._absent[key] += 1
            return None
        count, began = self._since.get(key, (0, step))
        self._since[key] = count + 1, began
        if count + 1 < patience:
            return None
        absent = self._absent.get(key)
        self._absent[key] = 0
        return began if absent is None or absent >= self._limits.window else None

    def _results(self, step: int, points: Sequence[Point]) -> list[Alarm]:
        """The first operator with a NaN in its result. Infinities may be meant: as masks."""
        bad = (series for series, value in points if series.quantity == "nans" and value)
        first = next(bad, None)
        if self._holds("nonfinite", "results", step, first is not None, 1) is None or first is None:
            return []
        place = Place(first.op_id, first.name, first.module_path, first.source)
        text = f"{first.label} has NaNs, and is the first operator that has some"
        return [_alarm("nonfinite", first.label, step, step, place, math.nan, None, text)]

    def _scalars(self, step: int, points: Sequence[Point]) -> list[Alarm]:
        found: list[Alarm] = []
        for series, value in points:
            name = series.name
            if series.tool != "scalars" or not ("loss" in name.lower() or name == GRADIENT_NORM):
                continue
            if not math.isfinite(value):
                if name != GRADIENT_NORM and self._holds("nonfinite", name, step, True, 1) is not None:
                    text = f"{name} is {value}"
                    found.append(_alarm("nonfinite", name, step, step, _NOWHERE, value, None, text))
                continue
            self._holds("nonfinite", name, step, False, 1)
            known = self._known.setdefault(name, collections.deque(maxlen=self._limits.window))
            median = statistics.median(known) if len(known) >= MIN_KNOWN else 0.0
            limit = median + (self._limits.growth - 1) * abs(median)
            diverges = median != 0 and value > max(limit, 0.0)  # what was zero has no factor
            if not diverges:
                known.append(value)
            began = self._holds("divergence", name, step, diverges, self._limits.patience)
            if began is not None:
                text = f"{name} is {value:.4g}, and its median was {median:.4g}"
                found.append(_alarm("divergence", name, began, step, _NOWHERE, value, limit, text))
        return found

    def _nonfinite_gradients(self, step: int, gradients: Sequence[Gradient]) -> list[Alarm]:
        """The first that the backward pass reached."""
        first = next((gradient for gradient in gradients if not math.isfinite(gradient.norm)), None)
        began = self._holds("nonfinite", "gradients", step, first is not None, self._limits.patience)
        if began is None or first is None:
            return []
        text = f"the gradient of {first.parameter} is not finite, and is the first that the backward pass reaches"
        return [_alarm("nonfinite", first.parameter, began, step, first.place, first.norm, None, text)]

    def _cuts(self, step: int, cuts: Sequence[Finding]) -> list[Alarm]:
        """Parameters that have never got a gradient, or never an update."""
        found: list[Alarm] = []
        for one in cuts:
            kind = _OF_VERDICTS[one.verdict]
            if one.verdict == "zero" and not one.has_weights:
                continue
            began = self._holds(kind, f"{one.parameters}", step, True, self._limits.patience)
            if began is not None:
                place = one.cuts[0].end or _NOWHERE
                text = f"{named(one.parameters)}: {one.cuts[0].text}"
                found.append(_alarm(kind, one.parameters[0], began, step, place, 0.0, None, text))
        return found

    def _sizes(self, step: int, gradients: Sequence[Gradient]) -> list[Alarm]:
        """Alarms about the gradients of weights. Biases may have no gradient for good reasons, as those before a
        normalization."""
        sizes = [(each, each.norm / math.sqrt(each.elements)) for each in gradients if each.elements]
        sizes = [(each, size) for each, size in sizes if math.isfinite(size)]
        first = next((i for i, (each, _) in enumerate(sizes) if each.dimensions >= 2), None)
        if first is None or not sizes[first][1]:
            return []
        next_to_loss = sizes[first]
        largest = max(sizes[: first + 1], key=lambda one: one[1])
        found = []
        for gradient, size in sizes[first + 1 :]:
            if gradient.dimensions < 2:
                continue
            low, high = self._limits.vanishing, self._limits.exploding
            conditions: list[tuple[Kind, tuple[Gradient, float], bool, float, str]] = [
                ("vanishing gradient", next_to_loss, size < low * next_to_loss[1], low, "less"),
                ("exploding gradient", largest, size > high * largest[1], high, "more"),
            ]
            for kind, (other, reference), condition, limit, what in conditions:
                began = self._holds(kind, gradient.parameter, step, condition, self._limits.patience)
                if began is not None:
                    ratio = size / reference
                    text = (
                        f"the gradient of {gradient.parameter} is {ratio:.2g} of that of {other.parameter}, "
                        f"{what} than {limit:g}"
                    )
                    found.append(_alarm(kind, gradient.parameter, began, step, gradient.place, ratio, limit, text))
        return found


_OF_VERDICTS: dict[str, Kind] = {"none": "no gradient", "zero": "zero gradient", "not updated": "no update"}
GRADIENT_NORM = "gradient_norm"
"""The scalar: the norm of the gradients of all parameters together."""


def _alarm(
    kind: Kind,
    subject: str,
    began: int,
    step: int,
    place: Place,
    value: float | None,
    limit: float | None,
    text: str,
    units: tuple[int, ...] = (),
) -> Alarm:
    return Alarm(
        kind, subject, began, step, place.op_id, place.name, place.module_path, place.source, value, limit, units, text
    )


def _dead(step: int, dead: Dead) -> Alarm:
    place, units = dead.place, dead.units
    listed = ", ".join(map(str, units[:MOST_UNITS]))
    more = f" and {len(units) - MOST_UNITS} more" if len(units) > MOST_UNITS else ""
    subject = place.module_path or f"{place.name.partition('::')[2]} {short_line(place.source)}"
    which = f"all {dead.of}" if len(units) == dead.of else f"{len(units)} of {dead.of}"
    text = f"{which} units of dimension {dead.dimension} were zero for all samples: {listed}{more}"
    return _alarm("dead units", subject, dead.began, step, place, float(len(units)), None, text, units)
