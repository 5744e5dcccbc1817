"""The order in which a graph with taps runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from amanda.drivers.torch_compile.inductor import port
from amanda.drivers.torch_compile.inductor.port import Memory, Outputs, Step
from amanda.drivers.torch_compile.lower.operators import BEGIN, LOOK


def ordered(steps: Sequence[Step], own: Callable[[], Sequence[Step]], outputs: Outputs) -> list[Step]:
    """inductor's order, in which taps that only look keep theirs, and run after neighboring loops, not between them.

    A call between two loops splits the code that the C++ compiler gets, and its time grows with the number of files.
    Operands of taps live longer, but inductor's estimate of the graph's peak memory does not grow.
    """
    looks = [step for step in steps if port.operator_of(step) is LOOK]
    if not looks:
        return list(own())
    for before, step in itertools.pairwise(looks):  # inductor loses the order of effects
        port.run_after(step, before)
    return _together(_begins_first(own()), outputs)


def _begins_first(steps: Sequence[Step]) -> list[Step]:
    """The nodes that stand for executions need no operand of the program, and next to no memory."""
    first: dict[Step, None] = {}
    for step in steps:
        made = port.predecessors(step)
        if port.operator_of(step) is BEGIN or (port.is_part(step) and made and all(one in first for one in made)):
            first[step] = None
    return [*first, *(step for step in steps if step not in first)]


def _together(steps: Sequence[Step], outputs: Outputs) -> list[Step]:
    peak, memory = 0, Memory(steps, outputs)
    for step in steps:
        peak = max(peak, memory.with_results_of(step))
        memory.run(step)
    made, late = _Made(Memory(steps, outputs)), list[Step]()
    in_loops = False
    for step in steps:
        if port.operator_of(step) is LOOK:
            late.append(step)
            if not in_loops:
                made.take(late)
            continue
        is_loop = not port.is_call(step) and port.is_on_cpu(step)
        if not port.is_nothing(step):
            fits = is_loop and made.memory.with_results_of(step) <= peak
            if late and not (fits and port.predecessors(step).isdisjoint(late)):
                made.take(late)
            in_loops = is_loop
        made.take([step])
    made.take(late)
    return made.steps


class _Made:
    def __init__(self, memory: Memory) -> None:
        self.steps: list[Step] = []
        self.memory = memory

    def take(self, steps: list[Step]) -> None:
        """Leaves the list empty."""
        for step in steps:
            self.memory.run(step)
        self.steps += steps
        steps.clear()
