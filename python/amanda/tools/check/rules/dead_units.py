"""dead-units."""

from __future__ import annotations

from typing import Any

from amanda import OpContext
from amanda.toolkit import Arrays, Place
from amanda.toolkit.frameworks import is_tensorflow

from ..rule import Rule

SAMPLED = 8  # runs that are looked at, at least
EVERY = 4


class DeadUnits(Rule):
    """A unit of a ReLU, a channel, is zero for all examples of all runs that were looked at: every fourth, and at least
    eight. It gets no gradient any more. Layers may have some units that are seldom used, so it reports layers of which
    half is dead. In TensorFlow, units are the last axis."""

    name = "dead-units"
    sentence = "units of a ReLU are always zero"
    fix = "a lower learning rate, another initialization of the bias, normalization before it, or LeakyReLU"
    is_advice = True
    ops = ("relu", "relu_", "tensorflow::Relu")
    bad = """
        model[0].bias.data.fill_(-100)
        for _ in range(40):
            model(x)
    """
    good = """
        for _ in range(40):
            model(torch.randn(16, 4))
    """

    def begin(self) -> None:
        self._alive: dict[Place, list[Any]] = {}  # runs, runs that were looked at, which units were alive

    def look(self, context: OpContext) -> None:
        is_last = is_tensorflow(context)
        context.insert_after_op(self._on_run, outputs=[0], place=Place.of(context), is_last=is_last)

    def _on_run(self, result: Any, place: Place, is_last: bool) -> None:
        known = self._alive.setdefault(place, [0, 0, None])
        known[0] += 1
        alive = (
            None if known[0] % EVERY else self.read_with(result, lambda plain, arrays: _alive(plain, arrays, is_last))
        )
        if alive is None:
            return
        if known[2] is None or known[2].shape != alive.shape:
            known[1:] = [1, alive]
        else:
            known[1:] = [known[1] + 1, known[2] | alive]

    def at_end(self, ended_well: bool) -> None:
        for place, (_, looked, alive) in self._alive.items():
            if looked >= SAMPLED and 2 * int(alive.sum()) <= len(alive):
                dead = len(alive) - int(alive.sum())
                self.found(place, f"{dead} of {len(alive)} units, in {looked} runs", count=looked)
        self._alive.clear()


def _alive(result: Any, arrays: Arrays, is_last: bool) -> Any:
    """Which units are not zero for all examples; None if there are no units."""
    if result.ndim < 2 or 0 in result.shape:
        return None
    units = result.ndim - 1 if is_last or result.ndim == 3 else 1
    return (arrays.detached(result) > 0).any(tuple(axis for axis in range(result.ndim) if axis != units))
