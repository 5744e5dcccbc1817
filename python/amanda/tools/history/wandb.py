"""A run of Weights & Biases, which the program has made and finishes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .alarms import Alarm
from .parameter_histograms import Histogram
from .series import Point, Tags, of_parameter

MOST_BINS = 512  # of a wandb.Histogram
PREFIX = "amanda"
STEP = f"{PREFIX}/step"


class WandbRun:
    """Logs to a run. The names of all values begin with "amanda/"; their axis is the number of the step, not the run's own
    count of calls, which the program moves, too.

    Raises:
        TypeError: `run` is none.
    """

    def __init__(self, run: Any) -> None:
        if not callable(getattr(run, "log", None)) or not callable(getattr(run, "define_metric", None)):
            raise TypeError(f"[history] wandb= is a run, as wandb.init() returns it, got {run!r}")
        self._run, self._tags = run, Tags()
        run.define_metric(STEP, hidden=True)
        run.define_metric(f"{PREFIX}/*", step_metric=STEP)

    def drop_from(self, step: int) -> None:
        """W&B drops what was logged itself, where it rewinds a run."""

    def add(self, step: int, points: list[Point], alarms: Sequence[Alarm], histograms: Sequence[Histogram]) -> None:
        values: dict[str, Any] = {self._tags.of(series): value for series, value in points}
        values |= {f"alarms/{alarm.kind}/{alarm.subject}": 1 for alarm in alarms}
        for one in histograms:
            values[self._tags.of(of_parameter(one.name, one.quantity))] = _of_wandb(one)
        self._run.log({STEP: step, **{f"{PREFIX}/{name}": value for name, value in values.items()}})

    def flush(self) -> None:
        """W&B writes by itself."""

    def close(self) -> None:
        """The run is the program's."""


def _of_wandb(one: Histogram) -> Any:
    counts, edges = list(one.counts), list(one.edges)
    while len(counts) > MOST_BINS:
        counts = [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]
        edges = [*edges[:-1:2], edges[-1]]
    return sys.modules["wandb"].Histogram(np_histogram=(counts, edges))  # the run is that module's
