"""OptimizerGradients: the gradients that optimizers get."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from amanda.toolkit import Arrays, Skips, own_work

from .parameter_histograms import Counted, Histogram, counted, histograms_of
from .parameters import Watched
from .series import Point, of_parameter, scalar

OPTIMIZER_GRADIENT_NORM = "optimizer_gradient_norm"


class _Read(NamedTuple):
    """The norm of a gradient, and its elements if they are counted."""

    norm: float
    counts: Counted | None


class OptimizerGradients:
    """Reads `.grad` of the parameters of each optimizer that steps: after unscaling, clipping, accumulation over backward
    passes, and averaging over ranks.

    Arguments:
        has_histograms: it counts their elements, too.
    """

    def __init__(self, watched: Watched, skips: Skips, has_histograms: bool) -> None:
        self._watched, self._skips, self._has_histograms = watched, skips, has_histograms
        self._steps: list[dict[str, _Read]] = []  # one for each step of an optimizer, by parameter
        self._stop: Callable[[], object] = lambda: None

    def begin(self) -> None:
        self.drop()
        if "torch" not in sys.modules:
            return
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._stop = register_optimizer_step_pre_hook(self._before).remove

    def drop(self) -> None:
        self._stop()
        self._stop = lambda: None
        self._steps = []

    def add(self, name: str, gradient: Any) -> None:
        """Adds the gradient that an optimizer of TensorFlow gets for a variable."""
        read = self._skips.read(gradient, functools.partial(self._read, 1.0))
        if read is not None:
            self._steps.append({name: read})

    def points(self) -> Iterator[Point]:
        """The norm of each parameter's gradient, and that of all together; the mean, if optimizers have stepped more than
        once."""
        norms: dict[str, list[float]] = {}
        for name, read in self._all():
            norms.setdefault(name, []).append(read.norm)
        means = {name: sum(of_name) / len(of_name) for name, of_name in norms.items()}
        for name, norm in means.items():
            yield of_parameter(name, OPTIMIZER_GRADIENT_NORM), norm
        if means:
            yield scalar(OPTIMIZER_GRADIENT_NORM), math.hypot(*means.values())

    def histograms(self) -> list[Histogram]:
        """Those of all steps of optimizers together."""
        found: dict[str, Counted] = {}
        for name, read in self._all():
            if read.counts is not None:
                found.setdefault(name, Counted()).add(read.counts)
        return histograms_of(found, "gradients")

    def _all(self) -> Iterator[tuple[str, _Read]]:
        return (one for step in self._steps for one in step.items())

    def _before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A hook of all optimizers. A closure, which computes the gradients inside of the step, is wrapped."""
        step: dict[str, _Read] = {}
        self._steps.append(step)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._look(optimizer, step)
            return None

        @functools.wraps(closure)
        def looked_at(*given: Any, **named: Any) -> Any:
            loss = closure(*given, **named)
            step.clear()  # of an optimizer that calls it several times, what it gets last
            self._look(optimizer, step)
            return loss

        return ((args[0], looked_at, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": looked_at})

    def _look(self, optimizer: Any, step: dict[str, _Read]) -> None:
        factor = _factor(optimizer)
        if factor is None:
            return
        with own_work():
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                if parameter.grad is not None and (name := self._watched.name_of(parameter)):
                    read = self._skips.read(parameter.grad, functools.partial(self._read, factor))
                    if read is not None:
                        step[name] = read

    def _read(self, factor: float, array: Any, arrays: Arrays) -> _Read:
        counts = counted(arrays.detached(array), arrays, factor) if self._has_histograms else None
        return _Read(arrays.norm(array) * factor, counts)


def _factor(optimizer: Any) -> float | None:
    """By what gradients are multiplied before the optimizer uses them; None if it will not.

    A GradScaler hands its scale to optimizers that unscale by themselves, such as fused ones.
    """
    scale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    if found_inf is not None and float(found_inf):
        return None
    return 1.0 if scale is None else 1.0 / float(scale)
