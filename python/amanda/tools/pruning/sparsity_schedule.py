"""SparsitySchedule: a sparsity that grows while a model trains."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeVar

from amanda import ON_DEMAND, OpContext, Tool

T = TypeVar("T")


class SparsitySchedule(Tool):
    """The cubic schedule of gradual pruning: fast at first, while many weights are redundant, then slower::

        schedule = SparsitySchedule(final=0.9, begin=100, end=1000, every=100)
        with amanda.apply(MagnitudePruning(schedule)):
            for batch in batches:
                train_step(batch)  # forward, backward, optimizer.step()
                schedule.step()

    After t steps the sparsity is ``final + (initial - final) * (1 - (t - begin) / (end - begin)) ** 3``. It changes at
    `begin`, then every so many steps, and at `end`; before `begin` it is 0. M. Zhu, S. Gupta: To prune, or not to prune:
    exploring the efficacy of pruning for model compression, arXiv:1710.01878, 2017; at the steps where it changes, the
    values are those of `torch.ao.pruning.CubicSL`.

    A step is a call of `step`, as with the schedulers of `torch.optim.lr_scheduler`. Forward passes, accumulated
    gradients, evaluation and recomputed regions do not count. Tools that prune take a schedule in place of a number, and
    depend on it: when its sparsity changes, masks are made anew. One schedule may serve several tools. A tool of your
    own that depends on it finds it in ``context["schedule"]``; its routines read `sparsity`.

    Arguments:
        initial, final: sparsities, 0 to 1.
        begin, end: numbers of steps.
        every: how many steps apart changes are.

    Raises:
        TypeError: a number of steps is not an integer.
        ValueError: a sparsity is not in its range, `begin` is negative, `end` is not after `begin`, or `every` is not
            positive.
    """

    def __init__(
        self, initial: float = 0.0, final: float = 0.9, *, begin: int = 0, end: int = 1000, every: int = 100
    ) -> None:
        super().__init__()
        self.initial, self.final = _share(initial, "initial"), _share(final, "final")
        self.begin, self.end, self.every = map(operator.index, (begin, end, every))
        if not 0 <= self.begin < self.end or self.every < 1:
            raise ValueError(
                "[pruning] a schedule begins at a step from 0 on, ends after it, and changes every 1 or more steps; "
                f"got begin={begin}, end={end}, every={every}"
            )
        self._steps = 0
        self._listeners: list[Callable[[], object]] = []
        self.add_inst_for_op(self._analyze, ops=ON_DEMAND)

    @property
    def steps(self) -> int:
        """How often `step` was called."""
        return self._steps

    @property
    def sparsity(self) -> float:
        """The sparsity now."""
        if self._steps < self.begin:
            return 0.0
        changed = self._steps - (self._steps - self.begin) % self.every if self._steps < self.end else self.end
        rest = 1 - (changed - self.begin) / (self.end - self.begin)
        low, high = sorted((self.initial, self.final))
        return min(max(self.final + (self.initial - self.final) * rest**3, low), high)  # rounding may go beyond

    def step(self) -> None:
        """Counts a step. Call it after ``optimizer.step()``, before the next ``optimizer.zero_grad()``."""
        self._set(self._steps + 1)

    def when_changed(self, listener: Callable[[], object]) -> None:
        """Calls ``listener()`` whenever `step` or `load_state_dict` changes the sparsity."""
        self._listeners.append(listener)

    def state_dict(self) -> dict[str, int]:
        """The state that a checkpoint needs: the number of steps."""
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on from a `state_dict`."""
        self._set(operator.index(state["steps"]))

    def _set(self, steps: int) -> None:
        before, self._steps = self.sparsity, steps
        if self.sparsity != before:
            for listener in self._listeners:
                listener()

    def _analyze(self, context: OpContext) -> None:
        context["schedule"] = self


def checked(sparsity: T, of: str = "weights") -> T:
    """Returns a sparsity: a number, or a schedule.

    Raises:
        ValueError: it is neither.
    """
    return sparsity if isinstance(sparsity, SparsitySchedule) else _share(sparsity, "sparsity", of)


def _share(value: T, what: str, of: str = "weights") -> T:
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"[pruning] {what} is the share of {of} to prune, 0 to 1; got {value!r}")
    return value


def now(sparsity: float | SparsitySchedule | None) -> float:
    """The sparsity that applies now; 0 for None."""
    return sparsity.sparsity if isinstance(sparsity, SparsitySchedule) else sparsity or 0.0
